# SPDX-License-Identifier: Apache-2.0
"""Trainers of a few numpy lines, deterministic and with a state, for tests of the federation around them."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal_client.train import RoundConfig
from shoal_common.errors import BudgetExhausted
from shoal_common.privacy.shared_update import SharedUpdate

SHAPES = {"a.weight": (8, 4), "a.bias": (4,), "scale": (), "none": (0, 3)}


def initial(_: Any = None) -> dict[str, np.ndarray]:
    """The model at round 0."""
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


class Walk:
    """Adds a random step whose size depends on a hidden state; the state is kept on disk by round."""

    def __init__(self, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> None:
        self.cluster = str(node_config["cluster"])
        self.node_config, self.run_config = node_config, run_config
        directory = run_config.get("state-dir")
        self.path = Path(str(directory)) / f"{self.cluster}.json" if directory else None
        self.momentum = 0.0

    def round(self, global_state: Mapping[str, np.ndarray], config: RoundConfig) -> SharedUpdate:
        """One step; a killed process finds the momentum of the round before."""
        if self.path and self.path.exists():
            self.momentum = json.loads(self.path.read_text()).get(str(config.round - 1), self.momentum)
        rng = np.random.default_rng([zlib.crc32(self.cluster.encode()), config.round])
        self.momentum = 0.9 * self.momentum + float(rng.normal())
        arrays = {
            name: np.asarray(array + 0.1 * self.momentum * rng.normal(size=array.shape), np.float32)
            for name, array in global_state.items()
        }
        if self.path:
            states = json.loads(self.path.read_text()) if self.path.exists() else {}
            self.path.write_text(json.dumps({**states, str(config.round): self.momentum}))
        return SharedUpdate(self.cluster, config.round, config.schema_hash, arrays, "", None, None, "")


def walk(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Walk:
    """A `trainer` function."""
    return Walk(node_config, run_config)


class Odd(Walk):
    """Does what its node configuration says in `does`."""

    def round(self, global_state: Mapping[str, np.ndarray], config: RoundConfig) -> SharedUpdate:
        """Raise, sleep, be spent, end the process, or walk."""
        does = self.node_config.get("does", "walk")
        if does == "raise":
            raise RuntimeError("broken on purpose")
        if does == "spent":
            raise BudgetExhausted("spent on purpose")
        if does == "sleep":
            time.sleep(0.5)
        if does == "die" and config.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if does == "spoil":  # it may not reach the server's arrays
            for array in global_state.values():
                assert not array.flags.writeable
        return super().round(global_state, config)


def odd(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Odd:
    """A `trainer` function."""
    return Odd(node_config, run_config)
