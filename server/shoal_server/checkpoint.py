# SPDX-License-Identifier: Apache-2.0
"""Rounds on disk: each one folder, written beside and renamed, so that it is there as a whole or not at all.

    round-000007/arrays.safetensors   the global model after round 7
    round-000007/state.json           history, config digest, sha256 of the arrays
    cohort.json                       whom the round in progress has asked

A folder whose digest does not hold (a torn disk) is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from shoal_common.errors import InputError
from shoal_common.wire import Arrays
from shoal_server.events import RoundRecord

_PREFIX = "round-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after `round` full rounds; round 0 is the initial model."""

    round: int
    arrays: Arrays
    history: tuple[RoundRecord, ...]


@final
class Checkpoints:
    """A folder of rounds of one run, known by its config digest."""

    def __init__(self, directory: Path, digest: str, keep: int) -> None:
        self._directory, self._digest, self._keep = directory, digest, keep
        directory.mkdir(parents=True, exist_ok=True)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write, flush to disk, rename; then drop the oldest ones."""
        payload = save({name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()})
        state = {
            "digest": self._digest,
            "round": checkpoint.round,
            "sha256": hashlib.sha256(payload).hexdigest(),
            "history": [asdict(record) for record in checkpoint.history],
        }
        target = self._directory / f"{_PREFIX}{checkpoint.round:06d}"
        staging = self._directory / f".{target.name}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        _write(staging / "arrays.safetensors", payload)
        _write(staging / "state.json", json.dumps(state).encode())
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
        _sync(self._directory)
        for old in self._folders()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """The newest round that is whole; `InputError` where the folder belongs to another run."""
        for folder in reversed(self._folders()):
            try:
                state = json.loads((folder / "state.json").read_bytes())
                payload = (folder / "arrays.safetensors").read_bytes()
                if hashlib.sha256(payload).hexdigest() != state["sha256"]:
                    continue
                arrays = load(payload)
            except (OSError, ValueError, KeyError, SafetensorError):
                continue
            self._recognise(folder, state)
            return Checkpoint(state["round"], arrays, tuple(_record(row) for row in state["history"]))
        return None

    def cohort(self, round_number: int) -> tuple[str, ...] | None:
        """Whom round `round_number` had asked when the run broke off."""
        try:
            state = json.loads((self._directory / "cohort.json").read_bytes())
            same = (state["digest"], state["round"]) == (self._digest, round_number)
        except (OSError, ValueError, KeyError):
            return None
        return tuple(state["cohort"]) if same else None

    def save_cohort(self, round_number: int, cohort: tuple[str, ...]) -> None:
        """Before anybody is asked: a resumed round asks the same clusters."""
        state = {"digest": self._digest, "round": round_number, "cohort": cohort}
        _write(self._directory / ".cohort.json", json.dumps(state).encode())
        (self._directory / ".cohort.json").rename(self._directory / "cohort.json")
        _sync(self._directory)

    def _folders(self) -> list[Path]:
        return sorted(self._directory.glob(f"{_PREFIX}[0-9]*"))

    def _recognise(self, folder: Path, state: Mapping[str, Any]) -> None:
        if state.get("digest") != self._digest:
            raise InputError(
                str(folder),
                "digest",
                "this checkpoint is of another configuration, fleet, schema or seed",
                "resume with the settings it was made with, or choose another folder",
            )


def _record(row: Mapping[str, Any]) -> RoundRecord:
    tuples = {name: tuple(row[name]) for name in ("cohort", "admitted", "spent")}
    return RoundRecord(**{**row, **tuples})


def _write(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
