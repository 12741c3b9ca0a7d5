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
PLAIN_TEXT = "plain text"
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


def no_resource() -> ApiError:
    """404: nothing is served at this path, though its group and version are."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def no_group() -> ApiError:
    """404 as plain text: no such group or version; its CustomResourceDefinition is not installed."""
    return ApiError(404, PLAIN_TEXT, "404 page not found\n")


def no_method() -> ApiError:
    """405: the path exists, the method does not."""
    text = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", text)


def about(qualified: str, name: str) -> dict[str, str]:
    """The details that name an object: its resource without the group, and the group where there is one."""
    plural, _, group = qualified.partition(".")
    return {"name": name, **({"group": group} if group else {}), "kind": plural}


def forbidden(resource: str, name: str, why: str) -> ApiError:
    """403: admission or authorisation says no."""
    return ApiError(403, "Forbidden", f'{resource} "{name}" is forbidden: {why}', about(resource, name))


def not_found(resource: str, name: str) -> ApiError:
    """404: no such object."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', about(resource, name))


def already_exists(resource: str, name: str) -> ApiError:
    """409: an object of this name is there."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', about(resource, name))


def conflict(resource: str, name: str, why: str = MODIFIED) -> ApiError:
    """409: the object changed, or its state forbids the request."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", text, about(resource, name))


def expired(message: str) -> ApiError:
    """410: the asked version or continue token is gone."""
    return ApiError(410, "Expired", message)


def invalid(kind: str, name: str, *faults: tuple[str, str]) -> ApiError:
    """422: fields are wrong; each fault is a field and why, beginning as a real server's does."""
    causes = [{"reason": _reason(why), "message": why, "field": field} for field, why in faults]
    listed = ", ".join(f"{field}: {why}" for field, why in faults)
    text = f'{kind} "{name}" is invalid: {listed if len(faults) == 1 else f"[{listed}]"}'
    details = {key: value for key, value in about(kind, name).items() if value}
    return ApiError(422, "Invalid", text, {**details, "causes": causes})


def _reason(why: str) -> str:
    starts = {"Forbidden": "Forbidden", "Required": "Required", "Unsupported": "NotSupported"}
    return f"FieldValue{starts.get(why.split(' ', maxsplit=1)[0].rstrip(':'), 'Invalid')}"
