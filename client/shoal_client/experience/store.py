# SPDX-License-Identifier: Apache-2.0
"""The durable store of decisions: SQLite in WAL mode, one writer thread, bounded.

    DIRECTORY/experience.db    decisions and their results; what apps are known to use
    DIRECTORY/local.key        the key under which names are hashed (0600)
    DIRECTORY/.lock            held by the one process that writes

A call puts a statement in line and returns; the thread commits whatever is in line as one transaction and
flushes it to disk (synchronous = FULL). What `flush` has acknowledged survives `kill -9` and a power cut. The
store holds at most `capacity` decisions, and at most `tenant_cap` of one tenant: beyond it a tenant's own
oldest decision goes, beyond the capacity the oldest of all. Both are public constants.

A store of another feature table, or one that SQLite cannot read, is set aside (one of each is kept) and a new
one is begun: a client that cannot remember still schedules.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from shoal_client.experience.apps import Row as AppRow
from shoal_client.experience.database import NAME, alone, connect, opened
from shoal_client.experience.local_key import LocalKey
from shoal_client.experience.records import DecisionRecord, Result, Seen
from shoal_client.metrics import (
    EXPERIENCE_DROPPED,
    EXPERIENCE_ERRORS,
    EXPERIENCE_EVICTED,
    EXPERIENCE_ROWS,
    EXPERIENCE_WRITE_ERRORS,
)
from shoal_common.errors import InputError

WAITING: Final = 5_000  # statements in line; what comes beyond is dropped and counted
TOGETHER: Final = 1_000  # statements of one transaction
RETRY_SECONDS: Final = 1.0  # between attempts to write where the disk refuses

Statement = Callable[[sqlite3.Connection], None]

_log = logging.getLogger("shoal.client.experience")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Bounds of a store. Public constants, none may be fitted to the records."""

    capacity: int = 50_000
    """Decisions kept; the oldest go first."""
    tenant_cap: int = 5_000
    """Decisions kept of one tenant (namespace); beyond it the tenant's own oldest go first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was taken: a flat candidate, -1 where it was not seen, and its propensity (NaN: not known).

    Where it is none of the candidates stored at first, `seen` replaces them, and `chosen` is the policy's
    choice among these.
    """

    action: int
    propensity: float = math.nan
    seen: Seen | None = None
    chosen: int = -1


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A decision that an earlier process left: its pod may still be waiting or running."""

    id: int
    uid: str
    attempt: int
    bound: bool
    closed: bool
    chosen: int
    pod: bytes
    seen: Seen | None  # of those not bound yet; names are hashed


@final
class ExperienceStore:
    """The writer. Use it as a context manager, or `start` and `stop` it."""

    def __init__(self, directory: Path, config: StoreConfig | None = None) -> None:
        """Open or make the store.

        Raises:
            InputError: another process writes it, its key may be read by others, or it cannot be written.
        """
        self.config, self.path = config or StoreConfig(), directory / NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.key = LocalKey(directory / "local.key")
            self._lock: int | None = alone(directory)
        except OSError as error:
            problem, remedy = error.strerror or str(error), "give a directory that can be written"
            raise InputError(str(directory), "store", problem, remedy) from error
        self._line: queue.SimpleQueue[tuple[Statement, threading.Event | None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="experience-store", daemon=True)
        with opened(self.path) as connection:
            self._next_id = 1 + int(connection.execute("SELECT max(id) FROM decision").fetchone()[0] or 0)
            self._next_closed = _next_closed(connection)
            self._tenants = Counter(
                dict(connection.execute("SELECT tenant, count(*) FROM decision GROUP BY tenant").fetchall())
            )
            self._unfinished = tuple(_unfinished(connection))
            self.apps: tuple[AppRow, ...] = tuple(connection.execute("SELECT * FROM app").fetchall())
        connection.close()
        EXPERIENCE_ROWS.set(self._tenants.total())

    def __enter__(self) -> ExperienceStore:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def stop(self, timeout: float = 4.0) -> None:
        """Write what is in line, then end; gives up after `timeout` seconds where the disk refuses."""
        if self._thread.is_alive():
            self._line.put(None)
            self._thread.join(timeout / 2)
            self._stopping.set()
            self._thread.join(timeout / 2)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def next_id(self) -> int:
        """A fresh id; ids count up over the life of the store. For one calling thread."""
        self._next_id += 1
        return self._next_id - 1

    def take_unfinished(self) -> tuple[Unfinished, ...]:
        """What an earlier process left, oldest first; once."""
        left, self._unfinished = self._unfinished, ()
        return left

    def decided(self, record: DecisionRecord) -> None:
        """Insert a decision with at most `KEPT` candidates; the writer packs them."""
        self._put(lambda connection: self._insert(connection, record))

    def bound(self, number: int, node: str, at: float, choice: Choice) -> None:
        """A decision's pod was bound to a node: the taken candidate, among those stored or among new ones."""
        self._put(lambda connection: self._bound(connection, number, node, at, choice))

    def closed(self, number: int, result: Result, final: bool) -> None:
        """The result of a decision is known; its reward never changes again. `final`: its pod has ended."""
        self._put(lambda connection: self._close(connection, number, result, final))

    def finished(self, number: int, result: Result) -> None:
        """The pod of a decision that is closed already has ended: everything but the reward is brought up."""
        self._put(lambda connection: _finish(connection, number, result))

    def save_apps(self, rows: Iterable[AppRow]) -> None:
        """Replace what apps are known to use."""
        kept = list(rows)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM app")
            connection.executemany("INSERT INTO app VALUES (?, ?, ?, ?, ?, ?)", kept)

        self._put(write)

    def flush(self, timeout: float) -> bool:
        """Wait until everything put in line so far is on disk; False where it is not by then."""
        done = threading.Event()
        self._line.put((_nothing, done))
        return done.wait(timeout)

    def _put(self, statement: Statement) -> None:
        if self._line.qsize() >= WAITING:
            EXPERIENCE_DROPPED.labels("store").inc()
            return
        self._line.put((statement, None))

    def _write(self) -> None:
        connection = connect(self.path)
        try:
            while True:
                batch, more = self._next_batch()
                if not self._commit(connection, [statement for statement, _ in batch]):
                    return
                for _, done in batch:
                    if done is not None:
                        done.set()
                EXPERIENCE_ROWS.set(self._tenants.total())
                if not more:
                    return
        finally:
            connection.close()

    def _next_batch(self) -> tuple[list[tuple[Statement, threading.Event | None]], bool]:
        """What is in line, waiting for the first; False after the last."""
        batch: list[tuple[Statement, threading.Event | None]] = []
        item = self._line.get()
        while item is not None:
            batch.append(item)
            if len(batch) >= TOGETHER or self._line.empty():
                return batch, True
            item = self._line.get()
        return batch, False

    def _commit(self, connection: sqlite3.Connection, statements: Sequence[Statement]) -> bool:
        """Run statements as one transaction, again until it succeeds; False where told to stop instead."""
        while True:
            tenants, closed = self._tenants.copy(), self._next_closed
            try:
                connection.execute("BEGIN IMMEDIATE")
                for statement in statements:
                    _run(connection, statement)
                if closed != self._next_closed:  # the row that holds the highest number may leave the store
                    connection.execute(
                        "INSERT OR REPLACE INTO meta VALUES ('closed', ?)", (str(self._next_closed),)
                    )
                connection.execute("COMMIT")
                return True
            except sqlite3.Error as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._tenants, self._next_closed = tenants, closed
                EXPERIENCE_WRITE_ERRORS.inc()
                _log.warning("%s: cannot write (%s); trying again", self.path, error)
                if self._stopping.wait(RETRY_SECONDS):
                    return False

    def _insert(self, connection: sqlite3.Connection, record: DecisionRecord) -> None:
        self._make_room(connection, record.tenant)
        row = (
            record.id, record.uid, record.attempt, record.at, record.source, record.scheduler, record.mode,
            record.policy, record.tenant, record.app, record.pod.astype("<f8").tobytes(),
            self._packed(record.seen), record.chosen, *record.quota, record.reason,
        )  # fmt: skip
        columns = (
            "id, uid, attempt, at, source, scheduler, mode, policy, tenant, app, pod, seen, chosen, "
            "quota_cpu, quota_memory, decided_reason"
        )
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO decision ({columns}) VALUES ({marks})", row)
        self._tenants[record.tenant] += 1

    def _packed(self, seen: Seen | None) -> bytes | None:
        return None if seen is None else seen.pack([self.key.hashed(name) for name in seen.names])

    def _make_room(self, connection: sqlite3.Connection, tenant: str) -> None:
        if self._tenants[tenant] >= self.config.tenant_cap:
            self._evict(connection, "WHERE tenant = ?", tenant)
        if self._tenants.total() >= self.config.capacity:
            self._evict(connection, "")

    def _evict(self, connection: sqlite3.Connection, where: str, *values: str) -> None:
        query = f"SELECT id, tenant FROM decision {where} ORDER BY id LIMIT 1"
        oldest = connection.execute(query, values).fetchone()
        if oldest is not None:
            connection.execute("DELETE FROM decision WHERE id = ?", oldest[:1])
            self._tenants[oldest[1]] -= 1
            EXPERIENCE_EVICTED.labels("tenant" if values else "capacity").inc()

    def _bound(
        self, connection: sqlite3.Connection, number: int, node: str, at: float, choice: Choice
    ) -> None:
        taken = (self.key.name(node), at, choice.action, _number(choice.propensity))
        _set(connection, number, "node = ?, bound_at = ?, action = ?, propensity = ?", *taken)
        if choice.seen is not None:
            _set(connection, number, "seen = ?, chosen = ?", self._packed(choice.seen), choice.chosen)

    def _close(self, connection: sqlite3.Connection, number: int, result: Result, final: bool) -> None:
        reward = (None,) * 4 if result.reward is None else result.reward
        _set(
            connection, number,
            "closed = ?, final = ?, outcome = ?, reason = ?, started_at = ?, ready_at = ?, ended_at = ?, "
            "util = ?, qos = ?, energy = ?, penalty = ?, seconds = ?, watts = ?, slowdown = ?, sla_met = ?, "
            "learnable = ?",
            self._next_closed, final, result.outcome, result.reason, result.started_at, result.ready_at,
            result.ended_at, *reward, result.seconds, _number(result.watts), _number(result.slowdown),
            result.sla_met, result.learnable,
        )  # fmt: skip
        self._next_closed += 1


def _run(connection: sqlite3.Connection, statement: Statement) -> None:
    """Run one statement. What is wrong with it alone must not hold up the others."""
    try:
        statement(connection)
    except sqlite3.OperationalError:
        raise
    except Exception:
        EXPERIENCE_ERRORS.inc()
        _log.exception("a decision or result cannot be stored")


def _finish(connection: sqlite3.Connection, number: int, result: Result) -> None:
    """Bring a closed decision up; what is not known now stays as it was known."""
    _set(
        connection, number,
        "final = 1, outcome = ?, reason = ?, started_at = coalesce(nullif(?, 0), started_at), "
        "ready_at = coalesce(nullif(?, 0), ready_at), ended_at = coalesce(nullif(?, 0), ended_at), "
        "slowdown = coalesce(?, slowdown), sla_met = coalesce(?, sla_met)",
        result.outcome, result.reason, result.started_at, result.ready_at, result.ended_at,
        _number(result.slowdown), result.sla_met,
    )  # fmt: skip


def _set(connection: sqlite3.Connection, number: int, columns: str, *values: object) -> None:
    """Update a decision; nothing happens where it has left the store."""
    connection.execute(f"UPDATE decision SET {columns} WHERE id = ?", (*values, number))


def _number(value: float) -> float | None:
    """NaN as NULL."""
    return None if value != value else value  # noqa: PLR0124


def _nothing(_: sqlite3.Connection) -> None:
    """A place in line and no statement."""


def _next_closed(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT value FROM meta WHERE name = 'closed'").fetchone()
    return 1 if found is None else int(found[0])


def _unfinished(connection: sqlite3.Connection) -> Iterable[Unfinished]:
    rows = connection.execute(
        "SELECT id, uid, attempt, node IS NOT NULL, closed IS NOT NULL, chosen, pod, "
        "CASE WHEN node IS NULL AND closed IS NULL THEN seen END FROM decision WHERE final = 0 ORDER BY id"
    )
    for number, uid, attempt, bound, closed, chosen, pod, seen in rows:
        yield Unfinished(
            number,
            uid,
            attempt,
            bool(bound),
            bool(closed),
            chosen,
            pod,
            None if seen is None else Seen.unpack(seen),
        )
