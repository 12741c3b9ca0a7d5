# SPDX-License-Identifier: Apache-2.0
"""What the API answers when it refuses: a Status object with the code, reason and sentence of a real server.

Source: apimachinery pkg/api/errors/errors.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOO_OLD_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter."
)
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class ApiError(Exception):
    """A refused request: HTTP code, reason and message; `details` goes into the Status as it is."""

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, dict(details or {})

    def status(self) -> dict[str, Any]:
        """The Status object that is sent."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def bad_request(message: str) -> ApiError:
    """400: the request itself is malformed."""
    return ApiError(400, "BadRequest", message)


def forbidden(resource: str, name: str, why: str) -> ApiError:
    """403: admission or authorisation says no."""
    text = f'{resource} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", text, {"name": name, "kind": resource})


def not_found(resource: str, name: str) -> ApiError:
    """404: no such object."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', {"name": name, "kind": resource})


def already_exists(resource: str, name: str) -> ApiError:
    """409: an object of this name is there."""
    text = f'{resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, {"name": name, "kind": resource})


def conflict(resource: str, name: str, why: str = MODIFIED) -> ApiError:
    """409: the object changed, or its state forbids the request."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", text, {"name": name, "kind": resource})


def expired(message: str) -> ApiError:
    """410: the asked version or continue token is gone."""
    return ApiError(410, "Expired", message)


def invalid(kind: str, name: str, field: str, why: str) -> ApiError:
    """422: a field is wrong."""
    cause = {"reason": "FieldValueInvalid", "message": why, "field": field}
    text = f'{kind} "{name}" is invalid: {field}: {why}'
    return ApiError(422, "Invalid", text, {"name": name, "kind": kind, "causes": [cause]})
