# SPDX-License-Identifier: Apache-2.0
"""The API over HTTP: an ASGI application with watch streams and faults on demand, and its thread."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, final
from urllib.parse import parse_qsl

import msgspec
import uvicorn

from shoal_simulations.control_plane.failures import PLAIN_TEXT, ApiError, bad_request
from shoal_simulations.control_plane.lists import Selection, bookmark, check_options, event, line, version_of
from shoal_simulations.control_plane.registry import Registry
from shoal_simulations.control_plane.requests import (
    JSON_TYPE,
    Answer,
    Request,
    Target,
    answer,
    check_access,
    target_of,
)
from shoal_simulations.control_plane.store import ADDED

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LOGGED_REQUESTS = 10_000
DEFAULT_WATCH_SECONDS = (1800.0, 3600.0)
LAST_BOOKMARK_SECONDS = 2.0
"""How long before its end a watch sends its last bookmark."""


@dataclass(slots=True)
class Faults:
    """What is wrong with the server at the moment."""

    delay_seconds: float = 0.0
    errors: list[tuple[int, str]] = field(default_factory=list)  # code, part of the paths that it hits
    denied: set[tuple[str, str]] = field(default_factory=set)  # verb, resource
    silent: bool = False  # streams that begin now are dead
    silenced: int = 0  # streams begun under a smaller number are dead
    gone_status: bool = False  # an old watch is answered 410 at once, not by an ERROR event
    ended: int = 0  # streams begun under a smaller number end


@final
class Application:
    """The ASGI application."""

    def __init__(self, registry: Registry, bookmark_seconds: float) -> None:
        self.registry = registry
        self.faults = Faults()
        self.requests: deque[Request] = deque(maxlen=LOGGED_REQUESTS)
        self.bookmark_seconds = bookmark_seconds
        self.closing = False
        self._random = random.Random(0)  # spreads time-outs, keeps nothing secret
        self._wakes: set[Callable[[], None]] = set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = await _read(scope, receive)
        self.requests.append(request)
        if self.faults.delay_seconds:
            await asyncio.sleep(self.faults.delay_seconds)
        try:
            self._fail(request)
            if request.watching:
                await self._watch(request, receive, send)
                return
            # in a thread where a webhook may be called, so that the server goes on meanwhile
            carry_out = asyncio.to_thread if request.method == "POST" else _at_once
            result = await carry_out(answer, self.registry, request, self.faults.denied)
        except ApiError as error:
            plain = error.reason == PLAIN_TEXT
            raw = error.message.encode() if plain else msgspec.json.encode(error.status())
            result = Answer(error.code, raw, "text/plain" if plain else JSON_TYPE)
        await _reply(send, result)

    def wake(self) -> None:
        """Let every stream look at the faults again."""
        for wake in tuple(self._wakes):
            wake()

    def _fail(self, request: Request) -> None:
        for index, (code, part) in enumerate(self.faults.errors):
            if part in request.path:
                del self.faults.errors[index]
                raise ApiError(code, "InternalError" if code >= 500 else "", f"injected {code}")

    async def _watch(self, request: Request, receive: Receive, send: Send) -> None:
        target = target_of(self.registry, request.path)
        check_access(request, target, self.faults.denied)
        stream = self._stream(request, target)
        wake = _waker(stream.woken)
        stop = self.registry.store.listen(wake)
        self._wakes.add(wake)
        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(lambda _: stream.woken.set())
        try:
            lines = stream.begin()
            await send({"type": "http.response.start", "status": 200, "headers": JSON_HEADERS})
            while not (gone.done() or self.closing):
                if lines and not stream.silent:
                    await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
                if stream.over():
                    await send({"type": "http.response.body", "body": b""})
                    return
                await stream.wait()
                lines = stream.more()
        finally:
            stop()
            self._wakes.discard(wake)
            gone.cancel()

    def _stream(self, request: Request, target: Target) -> _Stream:
        query = request.query
        check_options(query)
        names = dict(query)
        if target.name:
            names["fieldSelector"] = f"metadata.name={target.name}"
        seconds = float(query.get("timeoutSeconds") or 0) or self._random.uniform(*DEFAULT_WATCH_SECONDS)
        return _Stream(
            registry=self.registry,
            faults=self.faults,
            selection=Selection.of(target.resource, target.namespace, names),
            version=version_of(query),
            initial=query.get("sendInitialEvents", "") == "true",
            bookmarks=query.get("allowWatchBookmarks", "") in ("1", "true", "True"),
            interval=self.bookmark_seconds,
            until=time.monotonic() + seconds,
            born=(self.faults.ended, self.faults.silenced),
            silent=self.faults.silent,
        )


@dataclass(slots=True)
class _Stream:
    """One watch: which changes it has sent, and when it speaks next."""

    registry: Registry
    faults: Faults
    selection: Selection
    version: int
    initial: bool
    bookmarks: bool
    interval: float
    until: float
    born: tuple[int, int]
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    silent: bool = False
    failed: bool = False
    speak_at: float = 0.0

    def begin(self) -> list[bytes]:
        """The first events: existing objects where none or no version is given, else what came since.

        Raises:
            ApiError: 410, when old watches are refused by status.
        """
        self.speak_at = time.monotonic() + self.interval
        store, resource = self.registry.store, self.selection.resource
        if self.version and not self.initial:
            return self.more(going_on=False)
        with store.lock:
            self.version = store.revision
            found = [stored for key, stored in store.items(resource) if self.selection.holds(key, stored)]
        lines = [line(ADDED, stored.raw) for stored in found]
        if self.initial and self.bookmarks:
            lines.append(bookmark(resource, self.version, initial_end=True))
        return lines

    def more(self, *, going_on: bool = True) -> list[bytes]:
        """Events since the last call; a bookmark when one is due; an ERROR when the version is gone."""
        self.woken.clear()
        self.silent = self.silent or self.born[1] < self.faults.silenced
        if self.silent:
            return []
        store, resource = self.registry.store, self.selection.resource
        try:
            with store.lock:
                changes = store.changes(resource, self.version, going_on=going_on)
                version = store.revision
        except ApiError as error:
            if self.faults.gone_status:
                raise
            self.failed = True
            return [line("ERROR", msgspec.json.encode(error.status()))]
        self.version = max(version, self.version)
        lines = [sent for change in changes if (sent := event(self.selection, change)) is not None]
        now = time.monotonic()
        if self.bookmarks and now >= self.speak_at:
            lines.append(bookmark(resource, self.version))
            last = self.until - LAST_BOOKMARK_SECONDS
            self.speak_at = min(now + self.interval, last) if now < last else self.until
        return lines

    def over(self) -> bool:
        """Whether the stream ends in good order; a silent one never does."""
        out_of_time = time.monotonic() >= self.until
        return not self.silent and (self.failed or out_of_time or self.born[0] < self.faults.ended)

    async def wait(self) -> None:
        """Sleep until there may be something to say."""
        due = min(self.until, self.speak_at if self.bookmarks else self.until)
        seconds = None if self.silent else max(0.0, due - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.woken.wait(), seconds)


async def _at_once(act: Callable[..., Answer], *arguments: Any) -> Answer:
    return act(*arguments)


JSON_HEADERS = [(b"content-type", JSON_TYPE.encode())]


async def _read(scope: Mapping[str, Any], receive: Receive) -> Request:
    headers = {name: text.decode("latin-1") for name, text in scope["headers"]}
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return Request(
        method=scope["method"],
        path=scope["path"],
        query=dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True)),
        user_agent=headers.get(b"user-agent", ""),
        content_type=headers.get(b"content-type", "").partition(";")[0].strip(),
        body=body,
    )


async def _reply(send: Send, result: Answer) -> None:
    kind, size = result.content_type, len(result.raw)
    headers = [(b"content-type", kind.encode()), (b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": result.code, "headers": headers})
    await send({"type": "http.response.body", "body": result.raw})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _waker(woken: asyncio.Event) -> Callable[[], None]:
    """Sets an event of the running loop from any thread; nothing once that loop is closed."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(woken.set)

    return wake


@final
class Server:
    """Runs an application in a thread on a loopback port that stays the same over restarts."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; returns when connections are accepted."""
        if self._thread is not None:
            return
        self.application.closing = False
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.application,
            log_level="critical",
            log_config=None,  # one of its own would close every handler that there is, absl's with stderr
            lifespan="off",
            access_log=False,
            ws="none",
        )
        server = self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, args=([listener],), daemon=True, name="api")
        self._thread.start()
        while not server.started:
            if not self._thread.is_alive():
                raise bad_request(f"cannot listen on port {self.port}")
            time.sleep(0.002)

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is None or self._thread is None:
            return
        self.application.closing = True
        self.application.wake()
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._server = self._thread = None
