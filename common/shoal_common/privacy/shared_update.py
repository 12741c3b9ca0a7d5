# SPDX-License-Identifier: Apache-2.0
"""The one type that leaves a cluster. Everything in it is differentially private or a public constant.

It has no place for a sample count, a loss or any other figure, and refuses what has no place. Stored form:
safetensors, with the other fields in the header's metadata.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shoal_common.errors import InputError


@final
@dataclass(frozen=True, slots=True)
class SharedUpdate:
    """A cluster's parameters after one round.

    Attributes:
        cluster, round: who and when; both known to the server.
        schema_hash: the feature table and codings the parameters belong to.
        arrays: float32 parameters by name, trained under the plan; copied, so that
            later training cannot change them.
        releases: differentially private scalars, each with a ledger row of its own; none in this version.
        ledger_head: hash of the ledger row that paid for this update.
        epsilon, delta, unit: the whole ledger's guarantee; epsilon None: trained without privacy.

    Raises:
        InputError: a field is of another kind or range.
    """

    cluster: str
    round: int
    schema_hash: str
    arrays: Mapping[str, NDArray[np.float32]]
    ledger_head: str
    epsilon: float | None
    delta: float | None
    unit: str
    releases: tuple[()] = ()

    def __post_init__(self) -> None:
        for name in ("cluster", "schema_hash", "ledger_head", "unit"):
            if not isinstance(getattr(self, name), str):
                raise _wrong(name, "is not text")
        if isinstance(self.round, bool) or not isinstance(self.round, int) or self.round < 0:
            raise _wrong("round", "is not a whole number from 0")
        if self.releases != ():
            raise _wrong("releases", "has entries, which this version cannot account for")
        _check_guarantee(self.epsilon, self.delta, self.ledger_head)
        if not isinstance(self.arrays, Mapping):
            raise _wrong("arrays", "is not a mapping of names to arrays")
        object.__setattr__(self, "arrays", {name: _parameter(name, a) for name, a in self.arrays.items()})

    def to_bytes(self) -> bytes:
        """The stored form; equal updates give equal bytes."""
        from safetensors.numpy import save

        header = {
            "cluster": self.cluster,
            "round": self.round,
            "schema_hash": self.schema_hash,
            "ledger_head": self.ledger_head,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "names": list(self.arrays),
        }
        return bytes(save(dict(self.arrays), metadata={"shared_update": json.dumps(header, sort_keys=True)}))

    @classmethod
    def from_bytes(cls, data: bytes) -> SharedUpdate:
        """Read the stored form.

        Raises:
            InputError: not a stored update, or cut short.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            header = _header(data)
            arrays = load(data)
            ordered = {name: arrays.pop(name) for name in header.pop("names")}
            if arrays:
                raise ValueError(f"unknown arrays {sorted(arrays)}")
            return cls(arrays=ordered, **header)
        except (ValueError, KeyError, TypeError, AttributeError, struct.error, SafetensorError) as error:
            raise InputError("shared update", "bytes", str(error), "train the round again") from error


def _header(data: bytes) -> dict[str, Any]:
    """The fields from safetensors metadata: 8 bytes of length, then that many of JSON."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["shared_update"])
    if not isinstance(header, dict):
        raise ValueError("the header is not an object")
    return header


def _check_guarantee(epsilon: float | None, delta: float | None, ledger_head: str) -> None:
    if epsilon is None:
        return
    if (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, int | float)
        or not (math.isfinite(epsilon) and epsilon >= 0)
    ):
        raise _wrong("epsilon", "is not a finite number from 0")
    if not isinstance(delta, int | float) or not 0 < delta < 1:
        raise _wrong("delta", "is not between 0 and 1")
    if not ledger_head:
        raise _wrong("ledger_head", "is empty in an update that claims privacy")


def _parameter(name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
    if not isinstance(name, str) or not name:
        raise _wrong("arrays", "has a name that is not text")
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise _wrong("arrays", f"{name} is not a float32 array")
    return np.array(array, order="C")


def _wrong(field: str, problem: str) -> InputError:
    return InputError(
        "shared update", field, problem, "only parameters trained under the plan leave a cluster"
    )
