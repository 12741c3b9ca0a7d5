# SPDX-License-Identifier: Apache-2.0
"""A watch of the Kubernetes API: lines of JSON from a stream that the server holds open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, final

import urllib3

from shoal_common.errors import Transient


@final
class Watch:
    """A stream of events, one JSON document a line, to be read by one thread."""

    def __init__(self, response: Any, server: str) -> None:
        self._response, self._server = response, server

    def __iter__(self) -> Iterator[bytes]:
        """Lines as they come, until the server ends the stream.

        Raises:
            Transient: the stream broke, or was silent for too long.
        """
        kept = b""
        try:
            for chunk in self._response.stream(2**16, decode_content=True):
                *lines, kept = (kept + chunk).split(b"\n")
                yield from filter(None, lines)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Transient(f"{self._server}: the watch broke: {error}") from error

    def stop(self) -> None:
        """End the stream from another thread; whoever reads it is woken up."""
        with suppress(ValueError, OSError):
            self._response.shutdown()
