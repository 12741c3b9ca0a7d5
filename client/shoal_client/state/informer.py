# SPDX-License-Identifier: Apache-2.0
"""List and watch the API into a `LiveCluster`: one thread a kind, for ever, through every failure.

A thread lists once, as a stream where the server can, then watches from the list's version. A watch that
ends or breaks goes on from the last version that was seen; only when that is too old (410, as HTTP status or
as an event in the stream) the kind is listed again, and what the new list lacks is deleted. The server ends a
watch after `watch_seconds`; a stream that says nothing for `silent_seconds` is given up, whatever a load
balancer in between pretends. Objects are raw JSON until they are needed: a duplicate costs the reading of its
identity.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import msgspec

from shoal_client.kube.api import (
    NAMESPACES,
    NODE_TOPOLOGIES,
    NODES,
    PAGE,
    PODS,
    RESOURCE_SLICES,
    SERVICES,
    Api,
    Gone,
    NotFound,
    Resource,
    Watch,
)
from shoal_client.kube.errors import api_error
from shoal_client.metrics import CACHE_SYNCED, RELISTS, WATCH_ERRORS, WATCH_EVENTS, WATCH_LAST_EVENT
from shoal_client.state.live import Kind, LiveCluster
from shoal_common.errors import ShoalError, Transient

KINDS: Final[Mapping[Kind, Resource]] = {
    "Node": NODES,
    "Pod": PODS,
    "Namespace": NAMESPACES,
    "Service": SERVICES,
    "NodeResourceTopology": NODE_TOPOLOGIES,
    "ResourceSlice": RESOURCE_SLICES,
}
LIST_SECONDS: Final = 300  # the longest a list as a stream may take
INITIAL_END: Final = b"k8s.io/initial-events-end"
GIVE_WAY: Final = 8  # objects of a list after which other threads get their turn

Item = TypeVar("Item")

_log = logging.getLogger("shoal.client.informer")


@dataclass(frozen=True, slots=True)
class InformerSettings:
    """How lists and watches are asked for, in seconds.

    A quiet, healthy stream proves itself by its end: `silent_seconds` bounds how old the state can be.
    """

    watch_seconds: int = 40  # the server ends a watch then; its caches stay warm, so another one is cheap
    silent_seconds: float = 50.0  # longer than watch_seconds
    page: int = PAGE
    first_watch_seconds: int = 5  # of the first watch after a failure: its end says soon that all is well
    first_backoff_seconds: float = 0.5
    longest_backoff_seconds: float = 10.0
    silent_list_seconds: float = 10.0  # for the beginning of a list as a stream
    absent_seconds: float = 300.0  # until a kind that the server does not have is asked for again


class _Identity(msgspec.Struct):
    """What tells one version of an object from all others."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 (the API's name)


class _Head(msgspec.Struct):
    metadata: _Identity = msgspec.field(default_factory=_Identity)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815
    token: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[msgspec.Raw] | None = None


_read_event: Final = msgspec.json.Decoder(_Event).decode
_read_head: Final = msgspec.json.Decoder(_Head).decode
_read_page: Final = msgspec.json.Decoder(_Page).decode
_read: Final = msgspec.json.Decoder().decode


@final
class Informer:
    """Keeps a `LiveCluster` up to date between `start` and `stop`; a context manager does both."""

    def __init__(self, api: Api, live: LiveCluster, settings: InformerSettings | None = None) -> None:
        self._live = live
        self._stopped = threading.Event()
        self._loops = [
            _Loop(api, live, kind, resource, settings or InformerSettings(), self._stopped)
            for kind, resource in KINDS.items()
        ]

    def __enter__(self) -> Informer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the threads."""
        for loop in self._loops:
            loop.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End all streams and wait for the threads; they are daemons, so a hanging one holds nobody up."""
        self._stopped.set()
        deadline = time.monotonic() + timeout
        for loop in self._loops:
            loop.wake()
        for loop in self._loops:
            loop.join(max(0.0, deadline - time.monotonic()))

    def wait_synced(self, timeout: float) -> bool:
        """Wait until nodes and pods were listed; whether they were."""
        deadline = time.monotonic() + timeout
        while not self._live.synced and time.monotonic() < deadline and not self._stopped.is_set():
            self._stopped.wait(0.02)
        return self._live.synced


@final
class _Loop(threading.Thread):
    """Lists and watches one kind."""

    def __init__(
        self,
        api: Api,
        live: LiveCluster,
        kind: Kind,
        resource: Resource,
        settings: InformerSettings,
        stopped: threading.Event,
    ) -> None:
        super().__init__(name=f"informer-{kind}", daemon=True)
        self._api, self._live, self._kind, self._resource = api, live, kind, resource
        self._settings, self._stopped = settings, stopped
        self._version: str | None = None  # to watch from; None: list first
        self._listed = ""  # the version of the last list
        self._streams = True  # whether the next list is to be a stream
        self._failures = 0
        self._watch: Watch | None = None

    def wake(self) -> None:
        """End the stream that the thread may be reading."""
        watch = self._watch
        if watch is not None:
            watch.stop()

    def run(self) -> None:
        """List and watch until stopped."""
        CACHE_SYNCED.labels(self._kind).set(0)
        while not self._stopped.is_set():
            try:
                if self._version is None:
                    self._version = self._list()
                self._follow(self._version)
            except Gone:
                self._version = None
                self._pause("gone")
            except NotFound:
                self._absent()
            except (ShoalError, msgspec.MsgspecError) as error:
                _log.log(logging.WARNING if self._failures == 3 else logging.DEBUG, "%s", error)
                self._pause("error")
            except Exception:  # a bug must not end the thread: the state would grow old for ever
                _log.exception("%s: list again", self._kind)
                self._version = None
                self._pause("bug")

    def _pause(self, reason: str) -> None:
        """Wait, longer after each failure in a row, and never as long as another client."""
        if self._stopped.is_set():
            return
        WATCH_ERRORS.labels(self._kind, reason).inc()
        longest = self._settings.longest_backoff_seconds
        seconds = min(longest, self._settings.first_backoff_seconds * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._stopped.wait(seconds * random.uniform(0.5, 1.0))

    def _absent(self) -> None:
        """The server does not have the kind; that is fine where it is optional."""
        self._live.replace(self._kind, ())
        self._version = None
        self._stopped.wait(self._settings.absent_seconds * random.uniform(0.5, 1.0))

    def _list(self) -> str:
        """Replace the kind's objects by all that there are; the version to watch from."""
        reason = "gone" if self._listed else "first"
        self._live.replace(self._kind, self._streamed() if self._streams else self._paged())
        RELISTS.labels(self._kind, reason).inc()
        CACHE_SYNCED.labels(self._kind).set(1)
        self._heard()
        return self._listed

    def _streamed(self) -> Iterator[Mapping[str, Any]]:
        """All objects out of the server's cache as a stream: neither side holds the whole list at once.

        A server that cannot do it refuses, or stays silent; the next attempt is a list in pages then. So it
        is after a 410, when what the cache holds may be older than what is known.
        """
        self._streams = False
        with self._api.watch_raw(
            self._resource,
            resource_version="0",
            timeout_seconds=LIST_SECONDS,
            read_seconds=self._settings.silent_list_seconds,
            initial=True,
        ) as watch:
            self._watch = watch
            for count, line in enumerate(self._until_stopped(watch)):
                event = _read_event(line)
                if event.type == "ERROR":
                    raise _error(event)
                if event.type == "BOOKMARK" and INITIAL_END in bytes(event.object):
                    self._listed = _read_head(event.object).metadata.resourceVersion
                    return
                if event.type == "ADDED":
                    yield self._object(event.object, count)
        raise Transient(f"{self._kind}: the stream ended before the objects did")

    def _paged(self) -> Iterator[Mapping[str, Any]]:
        """All objects in pages; in one where lists have outlived their continue tokens before.

        Of the latest version: from its cache (version 0) kube-apiserver sends a list of any size at once.
        """
        token, limit = "", 0 if self._failures > 2 else self._settings.page
        while True:
            page = _read_page(self._api.list_raw(self._resource, limit=limit, continue_token=token))
            for count, raw in enumerate(self._until_stopped(page.items or ())):
                yield self._object(raw, count)
            token, self._listed = page.metadata.token, page.metadata.resourceVersion
            if not token:
                return

    def _until_stopped(self, source: Iterable[Item]) -> Iterator[Item]:
        """The same, cut short by an error once we are stopped: a list without its rest deletes nothing."""
        if not self._stopped.is_set():
            for item in source:
                yield item
                if self._stopped.is_set():
                    break
        if self._stopped.is_set():
            raise Transient("stopped")

    def _object(self, raw: msgspec.Raw, count: int) -> Mapping[str, Any]:
        """An object of a list, decoded as far as it is needed; other threads get their turn."""
        if count % GIVE_WAY == 0:
            time.sleep(0)
        return decoded(self._live, self._kind, raw)

    def _follow(self, version: str) -> None:
        """Watch from a version until the stream ends."""
        settings, began, events = self._settings, time.monotonic(), 0
        seconds = settings.watch_seconds
        if self._failures:
            seconds = min(seconds, settings.first_watch_seconds)
        with self._api.watch_raw(
            self._resource,
            resource_version=version,
            timeout_seconds=seconds,
            read_seconds=seconds + settings.silent_seconds - settings.watch_seconds,
        ) as watch:
            self._watch = watch
            for line in self._until_stopped(watch):
                self._version = self._take(line) or self._version
                self._heard()
                events, self._failures = events + 1, 0
        self._heard()
        if not events and time.monotonic() - began < 1.0:
            self._pause("short")  # a server that ends every watch at once must not be asked in a circle
        else:
            self._failures = 0

    def _take(self, line: bytes) -> str:
        """Take up one event of a stream; the version it brings."""
        event = _read_event(line)
        if event.type == "ERROR":
            status = _read(event.object)
            raise api_error(
                int(status.get("code") or 0), str(status.get("reason")), str(status.get("message"))
            )
        identity = _read_head(event.object).metadata
        known = event.type != "DELETED" and self._live.holds(
            self._kind, identity.uid, identity.resourceVersion
        )
        if event.type != "BOOKMARK" and not known:
            self._live.apply(self._kind, event.type, _read(event.object))
            WATCH_EVENTS.labels(self._kind).inc()
        return identity.resourceVersion

    def _heard(self) -> None:
        """The server is there and has told everything up to now."""
        self._live.touch(self._kind)
        WATCH_LAST_EVENT.labels(self._kind).set_to_current_time()


def decoded(live: LiveCluster, kind: Kind, raw: msgspec.Raw | bytes) -> Mapping[str, Any]:
    """An object of a list; no more than its identity where the state holds this version of it."""
    identity = _read_head(raw).metadata
    if live.holds(kind, identity.uid, identity.resourceVersion):
        return {"metadata": msgspec.structs.asdict(identity)}
    content: Mapping[str, Any] = _read(raw)
    return content


def _error(event: _Event) -> Exception:
    """The exception of an ERROR event, which carries a Status."""
    status = _read(event.object)
    return api_error(int(status.get("code") or 0), str(status.get("reason")), str(status.get("message")))
