# SPDX-License-Identifier: Apache-2.0
"""Objects with one resourceVersion over all of them, and the history that watches and old lists need.

What etcd and the watch cache are to a real API server: a list may be read as it was at a version, changes
may be read from a version on, and both are gone once that version is compacted. Contents are never changed
in place, so readers need no copy.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal_simulations.control_plane.failures import already_exists, expired, not_found
from shoal_simulations.control_plane.resources import Resource

Key = tuple[str, str]  # namespace ("" for cluster scope), name
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
HISTORY = 200_000
"""Changes kept by resource before the oldest half is compacted."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object: its content, and the JSON that is sent."""

    content: Mapping[str, Any]
    raw: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """One write: the object as it is now (at its deletion: as it last was) and as it was before."""

    revision: int
    kind: str
    key: Key
    current: Stored
    previous: Stored | None


@dataclass(slots=True)
class _Collection:
    objects: dict[Key, Stored] = field(default_factory=dict)
    order: list[Key] | None = None  # sorted keys, until one is added or removed
    history: list[Change] = field(default_factory=list)
    floor: int = 0  # who begins below this version is refused
    lost: int = 0  # the last change that is gone

    def forget(self, count: int) -> None:
        """Drop the oldest changes."""
        if count:
            self.lost = self.history[count - 1].revision
            del self.history[:count]


class Store:
    """All objects. Every method may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.revision = 1
        self._collections: dict[str, _Collection] = {}
        self._listeners: set[Callable[[], None]] = set()

    def get(self, resource: Resource, key: Key) -> Stored:
        """The object.

        Raises:
            ApiError: 404.
        """
        with self.lock:
            found = self._of(resource).objects.get(key)
        if found is None:
            raise not_found(resource.qualified, key[1])
        return found

    def create(self, resource: Resource, key: Key, content: dict[str, Any]) -> Stored:
        """Add an object; its resourceVersion is set.

        Raises:
            ApiError: 409, the name is taken.
        """
        with self.lock:
            collection = self._of(resource)
            if key in collection.objects:
                raise already_exists(resource.qualified, key[1])
            collection.order = None
            return self._write(collection, ADDED, key, content, None)

    def replace(self, resource: Resource, key: Key, content: dict[str, Any]) -> Stored:
        """Write a new version of an object that exists."""
        with self.lock:
            return self._write(self._of(resource), MODIFIED, key, content, self.get(resource, key))

    def remove(self, resource: Resource, key: Key) -> Stored:
        """Delete an object; the result carries the version of the deletion."""
        with self.lock:
            last = self.get(resource, key)
            collection = self._of(resource)
            collection.order = None
            content = {**last.content, "metadata": dict(last.content["metadata"])}
            return self._write(collection, DELETED, key, content, last)

    def items(self, resource: Resource) -> list[tuple[Key, Stored]]:
        """All objects of a resource, by namespace and name."""
        with self.lock:
            collection = self._of(resource)
            if collection.order is None:
                collection.order = sorted(collection.objects)
            return [(key, collection.objects[key]) for key in collection.order]

    def items_at(self, resource: Resource, revision: int) -> list[tuple[Key, Stored]]:
        """All objects as they were at a version.

        Raises:
            ApiError: 410, that version is compacted.
        """
        with self.lock:
            later = self.changes(resource, revision)
            if not later:
                return self.items(resource)
            past = dict(self.items(resource))
        for change in reversed(later):
            if change.previous is None:
                past.pop(change.key, None)
            else:
                past[change.key] = change.previous
        return sorted(past.items())

    def changes(self, resource: Resource, after: int, *, going_on: bool = False) -> list[Change]:
        """Changes of a resource behind a version, oldest first; an open stream may miss the version itself.

        Raises:
            ApiError: 410, some of them are compacted.
        """
        with self.lock:
            collection = self._of(resource)
            if after < (collection.lost if going_on else collection.floor):
                raise expired(f"too old resource version: {after} ({collection.floor})")
            start = bisect_right(collection.history, after, key=lambda change: change.revision)
            return collection.history[start:]

    def compact(self) -> None:
        """Forget the history: older versions are answered with 410 from now on."""
        with self.lock:
            self.revision += 1
            for collection in self._collections.values():
                collection.forget(len(collection.history))
                collection.floor = self.revision
            self._notify()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every write, in the writing thread; returns what ends it."""
        with self.lock:
            self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _of(self, resource: Resource) -> _Collection:
        return self._collections.setdefault(resource.qualified, _Collection())

    def _write(
        self, collection: _Collection, kind: str, key: Key, content: dict[str, Any], previous: Stored | None
    ) -> Stored:
        self.revision += 1
        content["metadata"]["resourceVersion"] = str(self.revision)
        stored = Stored(content, msgspec.json.encode(content))
        if kind == DELETED:
            del collection.objects[key]
        else:
            collection.objects[key] = stored
        collection.history.append(Change(self.revision, kind, key, stored, previous))
        if len(collection.history) > HISTORY:
            collection.forget(HISTORY // 2)
            collection.floor = collection.lost
        self._notify()
        return stored

    def _notify(self) -> None:
        self.changed.notify_all()
        for listener in tuple(self._listeners):
            listener()
