# SPDX-License-Identifier: Apache-2.0
"""The file of a store: its tables, how it is opened, and what is done with one that cannot be used."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Final

from shoal_client.lock_file import hold
from shoal_common.errors import InputError
from shoal_common.observation import schema_hash

NAME: Final = "experience.db"
DAMAGE: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS decision (
  id INTEGER PRIMARY KEY, uid TEXT NOT NULL, attempt INTEGER NOT NULL, at REAL NOT NULL,
  source TEXT NOT NULL, scheduler TEXT NOT NULL, mode TEXT NOT NULL, policy TEXT NOT NULL,
  tenant TEXT NOT NULL, app TEXT NOT NULL, pod BLOB NOT NULL, seen BLOB, chosen INTEGER NOT NULL,
  quota_cpu REAL NOT NULL, quota_memory REAL NOT NULL, decided_reason TEXT NOT NULL,
  node TEXT, action INTEGER, propensity REAL, bound_at REAL,
  closed INTEGER, final INTEGER NOT NULL DEFAULT 0, outcome TEXT, reason TEXT,
  started_at REAL, ready_at REAL, ended_at REAL, util REAL, qos REAL, energy REAL, penalty REAL,
  seconds REAL, watts REAL, slowdown REAL, sla_met INTEGER, learnable INTEGER);
CREATE INDEX IF NOT EXISTS decision_closed ON decision (closed) WHERE closed IS NOT NULL;
CREATE INDEX IF NOT EXISTS decision_tenant ON decision (tenant, id);
CREATE INDEX IF NOT EXISTS decision_uid ON decision (uid);
CREATE INDEX IF NOT EXISTS decision_unfinished ON decision (id) WHERE final = 0;
CREATE TABLE IF NOT EXISTS app (
  name TEXT PRIMARY KEY, cpu_use REAL NOT NULL, io_use REAL NOT NULL, seconds REAL NOT NULL,
  uses INTEGER NOT NULL, ends INTEGER NOT NULL);
"""

_log = logging.getLogger("shoal.client.experience")


def alone(directory: Path) -> int:
    """Keep other writers out; the descriptor holds the lock until it is closed.

    Raises:
        InputError: another process writes the store.
    """
    descriptor = hold(directory / ".lock")
    if descriptor is None:
        remedy = "stop it, or give another directory"
        raise InputError(str(directory), "store", "another process writes it", remedy)
    return descriptor


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes ahead and flushes every transaction; a new file is its owner's alone."""
    path.touch(mode=0o600)  # SQLite gives its other files the mode of this one
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    return connection


def opened(path: Path) -> sqlite3.Connection:
    """A connection to a sound store of this feature table; another one is set aside.

    Raises:
        InputError: the disk refuses.
    """
    for _ in range(2):
        connection = None
        try:
            connection = connect(path)
            problem = _problem(connection)
            if problem is None:
                return connection
            connection.close()
            _set_aside(path, "other-schema", problem)
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if getattr(error, "sqlite_errorname", "") not in DAMAGE:
                raise InputError(
                    str(path), "store", str(error), "free the disk, or give another directory"
                ) from None
            _set_aside(path, "damaged", str(error))
    raise InputError(str(path), "store", "cannot be begun anew", "give another directory")


def _problem(connection: sqlite3.Connection) -> str | None:
    """Make the tables and say what is wrong with what is in them."""
    connection.executescript(SCHEMA)
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (schema_hash(),))
    schema = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if check != "ok":
        error = sqlite3.DatabaseError(check)
        error.sqlite_errorname = DAMAGE[0]
        raise error
    return None if schema[0] == schema_hash() else "it is of another feature table"


def _set_aside(path: Path, name: str, problem: str) -> None:
    aside = path.with_name(f"{NAME}.{name}")
    _log.warning("%s: %s; it is kept as %s and a new store is begun", path, problem, aside.name)
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
