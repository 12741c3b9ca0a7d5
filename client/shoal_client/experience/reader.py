# SPDX-License-Identifier: Apache-2.0
"""Reading a store while another process writes it: one read-only transaction, closed soon.

A reader sees the store as it was when it began. It blocks no writer, but the write-ahead log cannot shrink
below its beginning, so nobody keeps one open.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from shoal_client.experience.database import NAME
from shoal_client.experience.records import DecisionRecord, Result, Seen, Stored
from shoal_common.errors import InputError, SchemaMismatch
from shoal_common.observation import schema_hash

READ_TIMEOUT_SECONDS: Final = 5.0


@final
class ExperienceReader:
    """A snapshot of the store in a directory. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Open the snapshot.

        Raises:
            InputError: there is no store, or it cannot be read.
            SchemaMismatch: it is of another feature table.
        """
        self.path = directory / NAME
        if not self.path.is_file():
            raise InputError(
                str(self.path), "store", "there is no such file", "give the directory that the client writes"
            )
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=READ_TIMEOUT_SECONDS, isolation_level=None
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("BEGIN")
            schema = self._connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        except sqlite3.DatabaseError as error:
            raise self._unreadable(error) from error
        if schema is None or schema[0] != schema_hash():
            self._connection.close()
            raise SchemaMismatch(f"{self.path}: is of another feature table; use the version that wrote it")

    def __enter__(self) -> ExperienceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __len__(self) -> int:
        return int(self._one("SELECT count(*) FROM decision") or 0)

    def last_followed(self) -> int:
        """The place of closing up to which every decision has a successor; 0 where nothing is closed.

        Only the newest decision has none; where it is closed already, it waits with what closed after it.
        """
        newest = self._one("SELECT closed FROM decision WHERE seen IS NOT NULL ORDER BY id DESC LIMIT 1")
        if newest is not None:
            return int(newest) - 1
        return int(self._one("SELECT max(closed) FROM decision") or 0)

    def rows(self, since: float = 0.0, until: float = float("inf")) -> Iterator[Stored]:
        """All decisions made in [since, until) (seconds since the epoch), in the order they were made."""
        return self._stored("WHERE at >= ? AND at < ? ORDER BY id", since, until)

    def of_pod(self, uid: str) -> list[Stored]:
        """All attempts of one pod, oldest first."""
        return list(self._stored("WHERE uid = ? ORDER BY id", uid))

    def closed_between(self, after: int, up_to: int, most: int) -> list[Stored]:
        """The newest `most` learnable decisions whose place of closing is in (after, up_to], by id."""
        where = (
            "WHERE id IN (SELECT id FROM decision WHERE closed > ? AND closed <= ? AND learnable = 1 "
            "AND seen IS NOT NULL ORDER BY closed DESC LIMIT ?) ORDER BY id"
        )
        return list(self._stored(where, after, up_to, most))

    def following(self, number: int) -> Stored | None:
        """The next decision after this one whose candidates are known."""
        return next(self._stored("WHERE id > ? AND seen IS NOT NULL ORDER BY id LIMIT 1", number), None)

    def _one(self, query: str) -> Any:
        try:
            row = self._connection.execute(query).fetchone()
            return None if row is None else row[0]
        except sqlite3.DatabaseError as error:
            raise self._unreadable(error) from error

    def _stored(self, where: str, *values: object) -> Iterator[Stored]:
        try:
            with closing(self._connection.execute(f"SELECT * FROM decision {where}", values)) as rows:
                for row in rows:
                    yield _stored(row)
        except (sqlite3.DatabaseError, ValueError, zlib.error) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(
            str(self.path), "store", str(error), "restore it, or let the client begin a new one"
        )


def _stored(row: sqlite3.Row) -> Stored:
    seen = None if row["seen"] is None else Seen.unpack(row["seen"])
    decision = DecisionRecord(
        **{name: row[name] for name in _PLAIN},
        pod=np.frombuffer(row["pod"], "<f8"),
        seen=seen,
        quota=(row["quota_cpu"], row["quota_memory"]),
        reason=row["decided_reason"],
    )
    return Stored(decision, _result(row), row["closed"] or 0, bool(row["final"]))


_PLAIN: Final = (
    "id", "uid", "attempt", "at", "source", "scheduler", "mode", "policy", "tenant", "app", "chosen",
)  # fmt: skip


def _result(row: sqlite3.Row) -> Result | None:
    """The result of a closed decision."""
    if row["closed"] is None:
        return None
    reward = tuple(row[term] for term in ("util", "qos", "energy", "penalty"))
    return Result(
        outcome=row["outcome"],
        reason=row["reason"],
        node=row["node"] or "",
        action=-1 if row["action"] is None else row["action"],
        propensity=_nan(row["propensity"]),
        bound_at=row["bound_at"] or 0.0,
        started_at=row["started_at"],
        ready_at=row["ready_at"],
        ended_at=row["ended_at"],
        reward=None if None in reward else reward,
        seconds=row["seconds"],
        watts=_nan(row["watts"]),
        slowdown=_nan(row["slowdown"]),
        sla_met=None if row["sla_met"] is None else bool(row["sla_met"]),
        learnable=bool(row["learnable"]),
    )


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
