# SPDX-License-Identifier: Apache-2.0
"""The HTTP extender as an ASGI application: /filter, /prioritize, /bind, /preempt, /metrics, /livez, /readyz.

A path's last part is the verb, so any urlPrefix works. Every answer to a verb has status 200 and a valid
body, except where the request cannot be read: filter and bind then carry an Error, prioritize and preempt,
whose answers have no place for one, the status 400. kube-scheduler ignores either.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar, final

from shoal_client.metrics import EXTENDER_REQUESTS, EXTENDER_SECONDS, EXTENDER_WHOLE_NODES, REGISTRY
from shoal_client.serve.asgi import JSON, TEXT, Receive, Send, read_body, send_answer
from shoal_client.serve.payloads import (
    Binding,
    Candidates,
    MetaVictims,
    read_binding,
    read_candidates,
    read_victims,
    write_error,
    write_filtered,
    write_priorities,
    write_victims,
)
from shoal_client.serve.service import DecisionService, Pending
from shoal_common.errors import InputError

LARGEST_BODY = 256 * 1024 * 1024
"""Bytes: 5,000 whole nodes of 50 kB. A request beyond is refused without being read."""

Reply = tuple[int, bytes]
Answer = TypeVar("Answer")

_log = logging.getLogger("shoal.client.serve")
_requests, _seconds = cache(EXTENDER_REQUESTS.labels), cache(EXTENDER_SECONDS.labels)  # a few verbs and codes


@final
class Extender:
    """The verbs. `binder` binds and says why not; without one /bind is refused."""

    def __init__(
        self,
        service: DecisionService,
        binder: Callable[[Binding], str] | None = None,
        victims: Callable[[dict[str, MetaVictims]], dict[str, MetaVictims]] | None = None,
    ) -> None:
        self._service, self._binder, self._victims = service, binder, victims
        self._verbs: dict[str, Callable[[bytes], Awaitable[Reply]]] = {
            "prioritize": self._prioritize,
            "filter": self._filter,
            "bind": self._bind,
            "preempt": self._preempt,
        }

    def answers(self, verb: str) -> bool:
        """Whether this is one of the verbs."""
        return verb in self._verbs

    async def answer(self, verb: str, body: bytes) -> Reply:
        """Status and body for one request; it raises nothing."""
        begin = time.perf_counter()
        try:
            code, text = await self._verbs[verb](body)
        except InputError as error:
            code, text = (200 if verb in ("filter", "bind") else 400), write_error(str(error))
        except Exception:  # an answer that says so is worth more than a broken connection
            _log.exception("%s failed", verb)
            code, text = 500, write_error("shoal failed to answer; see its log")
        _requests(verb, str(code)).inc()
        _seconds(verb).observe(time.perf_counter() - begin)
        return code, text

    async def _prioritize(self, body: bytes) -> Reply:
        asked = _candidates(body)
        found = await settle(self._service.prioritize(asked))
        return 200, write_priorities(asked.names, found.scores)

    async def _filter(self, body: bytes) -> Reply:
        asked = _candidates(body)
        found = await settle(self._service.filter(asked))
        if found.error:
            return 200, write_error(found.error)
        return 200, write_filtered(asked, found.kept, found.failed, found.unresolvable)

    async def _bind(self, body: bytes) -> Reply:
        wanted = read_binding(body)
        if self._binder is None:
            return 200, write_error("shoal does not bind here; remove bindVerb from the stanza")
        return 200, write_error(await asyncio.to_thread(self._binder, wanted))

    async def _preempt(self, body: bytes) -> Reply:
        asked = read_victims(body)
        return 200, write_victims({} if self._victims is None else self._victims(asked))


async def settle(pending: Pending[Answer]) -> Answer:
    """The answer within its deadline, without holding up others."""
    try:
        if pending.future.done() and not pending.future.cancelled():
            return pending.future.result()
        async with asyncio.timeout(pending.seconds):
            return await asyncio.wrap_future(pending.future)
    except TimeoutError:
        return pending.late()
    except asyncio.CancelledError:
        if not pending.future.cancelled():
            raise  # this request was cancelled, not its answer
        return pending.late()


@final
class Application:
    """ASGI: the extender's verbs, and what operators and probes read. Without an extender only the latter."""

    def __init__(self, extender: Extender | None, ready: Callable[[], str]) -> None:
        """`ready` says why the process cannot serve, "" where it can."""
        self._extender, self._ready = extender, ready

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        verb = scope["path"].rstrip("/").rpartition("/")[2]
        if self._extender is not None and scope["method"] == "POST" and self._extender.answers(verb):
            body = await read_body(receive, LARGEST_BODY)
            code, text = (
                (413, write_error("too large")) if body is None else await self._extender.answer(verb, body)
            )
            await send_answer(send, code, text, JSON)
        else:
            code, text = self._page(scope["method"], verb)
            await send_answer(send, code, text, TEXT)

    def _page(self, method: str, name: str) -> Reply:
        if method not in ("GET", "HEAD"):
            return 404, b"not found\n"
        if name == "metrics":
            from prometheus_client import generate_latest

            return 200, generate_latest(REGISTRY)
        if name == "livez":
            return 200, b"ok\n"
        if name == "readyz":
            why = self._ready()
            return (503, f"not ready: {why}\n".encode()) if why else (200, b"ok\n")
        return 404, b"not found\n"


def _candidates(body: bytes) -> Candidates:
    asked = read_candidates(body)
    if asked.nodes is not None:
        EXTENDER_WHOLE_NODES.inc()
    return asked


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
