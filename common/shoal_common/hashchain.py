# SPDX-License-Identifier: Apache-2.0
"""Append-only records on disk, each bound to the one before by a SHA-256 hash.

One record is one line of canonical JSON: {"body", "hash", "key", "previous_hash"}. An append is
acknowledged only after the line and, for a new file, its directory are on disk (write-ahead). A crash in the
middle of an append leaves a part of one last line, which was never acknowledged and is cut off at the next
append; anything else that is not exactly what was written raises `LedgerCorrupt`. The privacy ledger and the
audit log use it.

The chain alone cannot see that whole last lines were removed: whoever remembers a hash (a checkpoint, a
shared update) asks `contains` for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from shoal_common.errors import InputError, LedgerCorrupt

GENESIS = "0" * 64
"""The `previous_hash` of the first record."""


@dataclass(frozen=True)
class Record:
    """One line of the chain: a unique key, a JSON object, and the two hashes (hexadecimal SHA-256)."""

    key: str
    body: dict[str, Any]
    previous_hash: str
    hash: str


@final
class HashChain:
    """The records of one file, verified when opened, appended under a file lock, never changed.

    Raises:
        LedgerCorrupt: the file is not what this class wrote, or a key comes back with another body.
        InputError: the path cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[Record] = []
        self._by_key: dict[str, Record] = {}
        self._size = 0  # bytes of the file when it was read
        self._end = 0  # where the next line goes: behind the last verified byte
        self._glue = b""  # a line feed that the last record lacks
        self._reload()

    @property
    def records(self) -> tuple[Record, ...]:
        """All acknowledged records, in order."""
        return tuple(self._records)

    @property
    def head(self) -> str:
        """The hash of the last record; `GENESIS` for an empty chain."""
        return self._records[-1].hash if self._records else GENESIS

    def contains(self, digest: str) -> bool:
        """Whether the chain ever had this head (the empty chain's head included)."""
        return digest == GENESIS or any(record.hash == digest for record in self._records)

    def get(self, key: str) -> Record | None:
        """The record of a key, if there is one."""
        return self._by_key.get(key)

    def refresh(self) -> None:
        """Take in what another process appended since.

        Raises:
            LedgerCorrupt: the file was damaged, shortened, replaced or removed meanwhile.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self._size:
            self._reload()

    def append(self, key: str, body: dict[str, Any]) -> Record:
        """Put one record on disk and return it; the same key and body again return the first record.

        Returns only when the record survives a crash of the machine.

        Raises:
            LedgerCorrupt: the key is there with another body, or the file was damaged, shortened, replaced or
                removed meanwhile.
        """
        self.refresh()  # before the lock, which would make a new file of one that was removed
        with self._locked() as descriptor:
            if os.fstat(descriptor).st_size != self._size:
                self._reload()
            known = self._by_key.get(key)
            if known is not None:
                if _canonical(known.body) != _canonical(body):
                    raise LedgerCorrupt(f"{self.path}: {key} is already recorded with other content")
                self._write(descriptor, b"")  # whoever appended it may have died before it was on disk
                return known
            record = _seal(key, body, self.head)
            self._write(descriptor, _encode(record) + b"\n")
            self._remember(record)
        return record

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending, alone; create it and its folders durably."""
        if not self.path.exists():
            _make_directory(self.path.parent)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, line: bytes) -> None:
        """Write behind the verified part and wait until all of it is on disk; undo it on failure."""
        os.ftruncate(descriptor, self._end)
        data = self._glue + line
        try:
            _write_all(descriptor, data, self._end)
            os.fsync(descriptor)
            if len(self._records) <= 1:
                _sync_directory(self.path.parent)
        except OSError:
            os.ftruncate(descriptor, self._end)
            raise
        self._end += len(data)
        self._size, self._glue = self._end, b""

    def _remember(self, record: Record) -> None:
        self._records.append(record)
        self._by_key[record.key] = record

    def _reload(self) -> None:
        """Read and verify the whole file; a torn last line is left out (and cut at the next append).

        What this object has seen before must still be there; where it is not, nothing is taken over, so that
        every later append is refused too.
        """
        seen = self.head
        before = vars(self).copy()
        try:
            self._read()
            if not self.contains(seen):
                problem = "records that were there are gone" if self._records else "the records are gone"
                raise LedgerCorrupt(f"{self.path}: {problem}; restore the file")
        except Exception:
            vars(self).update(before)
            raise

    def _read(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise InputError(
                str(self.path), "file", str(error.strerror), "give a readable ledger file"
            ) from error
        self._records, self._by_key = [], {}
        *lines, tail = content.split(b"\n")
        whole = bool(tail) and not _is_torn(tail, self.path, len(lines) + 1)
        if whole:  # only the line feed is missing: the record counts
            lines.append(tail)
        for number, line in enumerate(lines, start=1):
            self._accept(_decode(line, self.path, number), number)
        self._size = len(content)
        self._end = self._size if whole else self._size - len(tail)
        self._glue = b"\n" if whole else b""

    def _accept(self, record: Record, number: int) -> None:
        if record != _seal(record.key, record.body, self.head):
            raise LedgerCorrupt(f"{self.path}:{number}: the record does not follow from the one before it")
        if record.key in self._by_key:
            raise LedgerCorrupt(f"{self.path}:{number}: {record.key} is recorded twice")
        self._remember(record)


def _canonical(value: object) -> bytes:
    """JSON with sorted keys, no spaces, ASCII only, no NaN: equal values have equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def _seal(key: str, body: dict[str, Any], previous_hash: str) -> Record:
    content = _canonical({"body": body, "key": key, "previous_hash": previous_hash})
    return Record(key, body, previous_hash, hashlib.sha256(content).hexdigest())


def _encode(record: Record) -> bytes:
    return _canonical(vars(record))


def _decode(line: bytes, path: Path, number: int) -> Record:
    """Parse one line; it must be byte for byte the canonical form of what it says."""
    try:
        record = Record(**json.loads(line.decode("ascii")))
        if isinstance(record.body, dict) and isinstance(record.key, str) and _encode(record) == line:
            return record
    except (ValueError, TypeError, RecursionError):
        pass
    raise LedgerCorrupt(f"{path}:{number}: not a record as it was written")


def _is_torn(tail: bytes, path: Path, number: int) -> bool:
    """Whether the bytes behind the last line feed are a part of a line (True) or a whole one (False).

    Raises:
        LedgerCorrupt: neither: a whole record with something behind it, or bytes that no append writes.
    """
    try:
        text = tail.decode("ascii")
        _, end = json.JSONDecoder().raw_decode(text)
    except UnicodeDecodeError:
        raise LedgerCorrupt(f"{path}:{number}: not a record as it was written") from None
    except ValueError:
        if not text.startswith('{"body":{'[: len(text)]) or not text.isprintable():
            raise LedgerCorrupt(f"{path}:{number}: not a record as it was written") from None
        return True
    if end != len(text):
        raise LedgerCorrupt(f"{path}:{number}: something stands behind the last record")
    return False


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _make_directory(path: Path) -> None:
    """Create a folder and its parents so that they survive a crash."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _sync_directory(folder.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
