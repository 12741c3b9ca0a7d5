# SPDX-License-Identifier: Apache-2.0
"""The small API client of the virtual scheduler and kubelet: requests, and a kind's objects kept current."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import msgspec
import urllib3

from shoal_simulations.control_plane.failures import ApiError

CONNECT_SECONDS, READ_SECONDS, WATCH_SECONDS = 2.0, 10.0, 60
RETRY_SECONDS = 0.05
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
Content = Mapping[str, Any]


@final
class ApiClient:
    """Requests to an API server; may be shared by threads."""

    def __init__(self, url: str, user_agent: str) -> None:
        self.url = url
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        self._pool = urllib3.PoolManager(
            maxsize=16, retries=False, timeout=timeout, headers={"User-Agent": user_agent}
        )

    def get(self, path: str) -> Any:
        """The object or list at a path.

        Raises:
            ApiError: the server refuses. ConnectionError: it cannot be reached.
        """
        return self._ask("GET", path, None, "")

    def post(self, path: str, body: Content) -> Any:
        """Create an object, or act by a subresource; raises as `get`."""
        return self._ask("POST", path, body, "application/json")

    def patch(self, path: str, body: Content, content_type: str = STRATEGIC_PATCH) -> Any:
        """Patch an object; raises as `get`."""
        return self._ask("PATCH", path, body, content_type)

    def delete(self, path: str, body: Content) -> Any:
        """Delete an object with these options; raises as `get`."""
        return self._ask("DELETE", path, body, "application/json")

    def stream(self, path: str) -> urllib3.BaseHTTPResponse:
        """An open watch; raises as `get`."""
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=WATCH_SECONDS + READ_SECONDS)
        try:
            return self._pool.request("GET", self.url + path, preload_content=False, timeout=timeout)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """Close every connection."""
        self._pool.clear()

    def _ask(self, method: str, path: str, body: Content | None, content_type: str) -> Any:
        raw = None if body is None else msgspec.json.encode(body)
        headers = {**self._pool.headers, **({"Content-Type": content_type} if content_type else {})}
        try:
            answer = self._pool.request(method, self.url + path, body=raw, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error
        if answer.status >= 400:
            raise _refusal(answer.status, answer.data)
        return msgspec.json.decode(answer.data)


def _refusal(code: int, raw: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(raw)
        return ApiError(code, status.get("reason", ""), status.get("message", ""), status.get("details"))
    except msgspec.DecodeError:
        return ApiError(code, "", raw.decode(errors="replace"))


@final
class Feed:
    """Lists a kind, then watches it, for ever, in a thread of its own.

    `replace` gets all objects of a list, `change` one event (ADDED, MODIFIED or DELETED and the object).
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        replace: Callable[[Iterable[Content]], None],
        change: Callable[[str, Content], None],
    ) -> None:
        self._client, self._path, self._replace, self._change = client, path, replace, change
        self._stop = threading.Event()
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"feed {path}")
        self.listed = threading.Event()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._stop.set()
        stream = self._open
        if stream is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended by itself
                stream.shutdown()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                listed = self._client.get(self._path)
                self._replace(listed["items"])
                self.listed.set()
                self._watch(listed["metadata"]["resourceVersion"])
            except (ApiError, ConnectionError, urllib3.exceptions.HTTPError, OSError, ValueError):
                self._stop.wait(RETRY_SECONDS)

    def _watch(self, version: str) -> None:
        """Follow changes until the server asks for a new list; streams that merely end are begun again."""
        while not self._stop.is_set():
            query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}"
            stream = self._open = self._client.stream(f"{self._path}?{query}&resourceVersion={version}")
            try:
                if self._stop.is_set():  # between its question and this stream
                    return
                for event in _events(stream):
                    found = event["object"]
                    if event["type"] == "ERROR":
                        return
                    version = found["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._change(event["type"], found)
            finally:
                self._open = None
                stream.release_conn()
                stream.close()


def _events(stream: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
    rest = b""
    for chunk in stream.read_chunked():
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            yield msgspec.json.decode(raw)
