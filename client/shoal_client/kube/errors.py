# SPDX-License-Identifier: Apache-2.0
"""What a refusal of the Kubernetes API means to a caller: try again, look again, or give up."""

from __future__ import annotations

from shoal_common.errors import Fatal, Transient


class Refused(Fatal):
    """The API refused a request, and would again. `status` is HTTP's, `reason` Kubernetes' CamelCase word."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class NotFound(Refused):
    """404: no such object, or no such resource."""


class Conflict(Refused):
    """409: somebody else was there first; read again before another try."""


class Gone(Refused):
    """410: the version or the continue token is too old; list again."""


class TooManyRequests(Transient):
    """429: the server is busy, or a PodDisruptionBudget forbids an eviction now."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


def api_error(code: int, reason: str, sentence: str, retry_after: str = "") -> Exception:
    """The exception for a status of the API, from HTTP or from a watch's ERROR event."""
    if code == 429:
        return TooManyRequests(sentence, float(retry_after) if retry_after.isdecimal() else 1.0)
    if code >= 500 or code in (408, 0):
        return Transient(sentence)
    kind = {404: NotFound, 409: Conflict, 410: Gone}.get(code, Refused)
    return kind(sentence, code, reason)
