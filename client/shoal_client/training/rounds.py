# SPDX-License-Identifier: Apache-2.0
"""A cluster's rounds on disk. A round is one folder, written beside, flushed, renamed: all of it or nothing.

    round-000007/round.json            run, step count, head of the ledger, rows of experience
    round-000007/update.safetensors    what was or will be shipped; kept for the last three rounds
    round-000007/experience.npz        the transitions that were new in that round; they rebuild the replay
    round-000007/learner.pt            the learner's state at its end; of the newest round only

The update and the learner's state must never be of different rounds, hence one rename for both. A round older
than three goes once newer ones fill the replay without it, so a folder does not grow for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, final
from zipfile import BadZipFile

import numpy as np

from shoal_common.errors import Fatal, InputError
from shoal_common.privacy.shared_update import SharedUpdate
from shoal_common.transition import Transitions

_PREFIX: Final = "round-"
_META, _UPDATE, _EXPERIENCE, _LEARNER = "round.json", "update.safetensors", "experience.npz", "learner.pt"
_KEEP_UPDATES: Final = 3  # as many as the server keeps checkpoints: it may fall back by so many rounds


@dataclass(frozen=True, slots=True)
class StoredRound:
    """The state at the end of a round; round 0 is the beginning and has neither update nor experience."""

    round: int
    run: str
    steps: int
    update: SharedUpdate | None
    experience: Transitions | None
    learner: bytes  # in torch's format; this module needs no torch
    ledger_head: str | None = None


@final
class RoundStore:
    """The folder of one cluster, whose replay holds `capacity` transitions."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self.directory, self._capacity = directory, capacity
        self._rows: dict[str, int] = {}  # transitions by folder, as round.json says
        directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process trains this cluster, and keep others out.

        A runtime that loses sight of a client starts a second one. Two that train one round would release it
        twice for one charge; the second one waits and finds the first one's update stored.
        """
        descriptor = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # which unlocks, as the end of the process does

    def latest(self) -> int | None:
        """The newest round; None in a new folder."""
        folders = self._folders()
        return int(folders[-1].name.removeprefix(_PREFIX)) if folders else None

    def update(self, round_number: int, run: str) -> SharedUpdate | None:
        """The stored update of a round; `InputError` where it is of another run."""
        folder = self._folder(round_number)
        if not (folder / _UPDATE).exists():
            return None
        if self.run(round_number) != run:
            raise self.another_run()
        with self._intact(folder / _UPDATE):
            return SharedUpdate.from_bytes((folder / _UPDATE).read_bytes())

    def run(self, round_number: int) -> str:
        """The digest of the run that a stored round belongs to; empty for round 0, which any run may take."""
        meta = self._folder(round_number) / _META
        with self._intact(meta):
            return str(json.loads(meta.read_bytes())["run"])

    def load(self, round_number: int) -> StoredRound:
        """The state at the end of the newest round; its experience comes from `experience`."""
        folder = self._folder(round_number)
        with self._intact(folder / _META):
            meta = json.loads((folder / _META).read_bytes())
            run, steps, head = meta["run"], meta["steps"], meta["ledger_head"]
        with self._intact(folder / _LEARNER):
            learner = (folder / _LEARNER).read_bytes()
        return StoredRound(round_number, run, steps, None, None, learner, head)

    def experience(self) -> Iterator[Transitions]:
        """All rounds' transitions, oldest first."""
        for folder in self._folders():
            path = folder / _EXPERIENCE
            if path.exists():
                with self._intact(path), np.load(path, allow_pickle=False) as columns:
                    transitions = Transitions(**{name: columns[name] for name in columns.files})
                yield transitions

    def save(self, state: StoredRound) -> None:
        """Write a round; when this returns it is on disk as a whole."""
        staging = self.directory / ".staging"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        (staging / _LEARNER).write_bytes(state.learner)
        head = state.ledger_head
        if state.update is not None:
            (staging / _UPDATE).write_bytes(state.update.to_bytes())
            head = state.update.ledger_head or None
        if state.experience is not None and len(state.experience):
            columns = {f.name: getattr(state.experience, f.name) for f in fields(Transitions)}
            np.savez(staging / _EXPERIENCE, **columns)
        rows = 0 if state.experience is None else len(state.experience)
        meta = {"run": state.run, "steps": state.steps, "ledger_head": head, "rows": rows}
        (staging / _META).write_text(json.dumps(meta))
        for path in (*staging.iterdir(), staging):
            _sync(path)
        staging.rename(self._folder(state.round))
        _sync(self.directory)
        self._prune()

    def damaged(self, round_number: int, error: Exception) -> Fatal:
        """The learner's state of a round cannot be taken up."""
        return _damaged(self._folder(round_number) / _LEARNER, error)

    @staticmethod
    @contextmanager
    def _intact(path: Path) -> Iterator[None]:
        """Turn whatever a damaged file raises into one line that names the file."""
        try:
            yield
        except (ValueError, KeyError, TypeError, OSError, EOFError, BadZipFile, zlib.error) as error:
            raise _damaged(path, error) from error

    def another_run(self) -> InputError:
        """The state belongs to another run."""
        return InputError(
            str(self.directory),
            "run",
            "this cluster's state is of another run (configuration, fleet, schema or seed)",
            "resume with the settings it was made with, or choose another folder",
        )

    def _prune(self) -> None:
        newer = 0  # transitions of younger rounds
        for age, folder in enumerate(reversed(self._folders())):
            if age:
                (folder / _LEARNER).unlink(missing_ok=True)
            rows = self._rows_of(folder)
            if age >= _KEEP_UPDATES:
                (folder / _UPDATE).unlink(missing_ok=True)
                if rows == 0 or newer >= self._capacity:
                    shutil.rmtree(folder, ignore_errors=True)
            newer += rows

    def _rows_of(self, folder: Path) -> int:
        """Transitions of a round; 0 for the rest of a folder whose removal broke off."""
        if folder.name not in self._rows:
            meta = folder / _META
            self._rows[folder.name] = json.loads(meta.read_bytes())["rows"] if meta.exists() else 0
        return self._rows[folder.name]

    def _folder(self, round_number: int) -> Path:
        return self.directory / f"{_PREFIX}{round_number:06d}"

    def _folders(self) -> list[Path]:
        return sorted(self.directory.glob(f"{_PREFIX}[0-9]*"))


def _damaged(path: Path, error: Exception) -> Fatal:
    kind = type(error).__name__
    return Fatal(f"{path}: cannot be read ({kind}); restore this cluster's folder, or start in another one")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
