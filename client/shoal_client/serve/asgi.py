# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of our small ASGI applications: a whole body in, a whole body out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")


async def read_body(receive: Receive, largest: int) -> bytes | None:
    """The whole body; None, without reading on, where it is larger than so many bytes."""
    message = await receive()
    parts, size = [message.get("body", b"")], len(message.get("body", b""))
    while size <= largest and message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    return b"".join(parts) if size <= largest else None


async def send_answer(send: Send, code: int, body: bytes, kind: tuple[bytes, bytes] = JSON) -> None:
    """Send an answer with its length."""
    headers = [kind, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
