# SPDX-License-Identifier: Apache-2.0
"""The settings of a federation, as they stand in Flower's run configuration (flat keys, plain values)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from shoal_common.errors import InputError
from shoal_common.wire import PROTOCOL, Arrays

Scalar = bool | int | float | str
_WHERE = "run configuration"


@dataclass(frozen=True, slots=True)
class Settings:
    """How rounds run. Keys of the run configuration are these names with dashes."""

    rounds: int = 3  # rounds in all; a resumed run goes on to this number
    seed: int = 0  # of the cohorts
    fraction: float = 1.0  # share of the known clusters asked each round
    quorum: int = 1  # admitted updates without which a round is void
    min_clusters: int = 1  # clusters to wait for before a round
    join_timeout_seconds: float = 60.0  # how long to wait for them
    round_timeout_seconds: float = 0.0  # deadline of a round; 0: none
    max_update_rms: float = 0.1  # how far a round may move a parameter (root mean square), a public constant
    max_weight: float = 10.0  # public weights are clipped to it
    weights: str = ""  # public weights, "cluster=2,other=0.5"; equal (1) where unnamed
    checkpoint_dir: str = ""  # where rounds are kept; empty: nowhere, no resume
    keep_checkpoints: int = 3
    fleet_digest: str = ""  # of whatever else decides the result (fleet file, learner settings)

    def __post_init__(self) -> None:
        _require(self.rounds >= 1, "rounds", self.rounds, "at least 1")
        _require(0 < self.fraction <= 1, "fraction", self.fraction, "above 0, at most 1")
        _require(self.quorum >= 1, "quorum", self.quorum, "at least 1")
        _require(self.min_clusters >= 1, "min-clusters", self.min_clusters, "at least 1")
        _require(self.keep_checkpoints >= 1, "keep-checkpoints", self.keep_checkpoints, "at least 1")
        for name in ("join_timeout_seconds", "round_timeout_seconds", "max_weight"):
            value = getattr(self, name)
            _require(value >= 0 and math.isfinite(value), name.replace("_", "-"), value, "finite, at least 0")
        rms = self.max_update_rms
        _require(rms > 0 and math.isfinite(rms), "max-update-rms", rms, "finite, above 0")
        self.public_weights()

    @classmethod
    def parse(cls, run_config: Mapping[str, Scalar]) -> Settings:
        """From a run configuration; other keys are the client's. `InputError` on a wrong type or range."""
        values: dict[str, Scalar] = {}
        for setting in fields(cls):
            key = setting.name.replace("_", "-")
            if key in run_config:
                values[setting.name] = _typed(key, run_config[key], str(setting.type))
        return cls(**values)  # type: ignore[arg-type]  # each value was checked against its field's type

    @property
    def directory(self) -> Path | None:
        """Where checkpoints go."""
        return Path(self.checkpoint_dir) if self.checkpoint_dir else None

    def max_update_norm(self, parameters: int) -> float:
        """The same as a bound on the L2 norm of update minus global model, for so many parameters.

        0.1 is what Adam moves every parameter in 50 updates that all point one way at a learning rate of
        2e-3; real updates stay below half of that (`rate * updates` is the rule for other settings).
        """
        return self.max_update_rms * math.sqrt(parameters)

    def public_weights(self) -> dict[str, float]:
        """The named weights, clipped to [0, max-weight]."""
        weights: dict[str, float] = {}
        for part in filter(None, self.weights.split(",")):
            name, _, text = part.partition("=")
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            _require(value >= 0 and math.isfinite(value), "weights", part, "name=number, at least 0")
            weights[name.strip()] = min(value, self.max_weight)
        return weights

    def digest(self, schema_hash: str, model: Arrays) -> str:
        """Of all that decides the result, so that a checkpoint of another run is refused.

        The number of rounds, the timeouts and the folder are left out: a run may be extended and moved.
        """
        facts = {
            "protocol": PROTOCOL,
            "schema": schema_hash,
            "arrays": sorted((name, list(array.shape)) for name, array in model.items()),
            "weights": sorted(self.public_weights().items()),
            **{
                name: getattr(self, name)
                for name in ("seed", "fraction", "quorum", "max_update_rms", "fleet_digest")
            },
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _typed(key: str, value: Scalar, kind: str) -> Scalar:
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    _require(type(value).__name__ == kind, key, value, f"of type {kind}")
    return value


def _require(holds: bool, key: str, value: object, rule: str) -> None:
    if not holds:
        raise InputError(_WHERE, key, f"{value!r} is not {rule}", f"give a value that is {rule}")
