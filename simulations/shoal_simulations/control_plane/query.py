# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors as they stand in a request's query string.

Source: apimachinery pkg/labels (Parse), pkg/fields; which fields each kind knows:
pkg/apis/core/v1/conversion.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from shoal_common.selectors import Requirement
from shoal_simulations.control_plane.failures import bad_request
from shoal_simulations.control_plane.resources import Resource

Test = Callable[[Mapping[str, Any]], bool]

SET = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
PAIR = re.compile(r"([^\s=!<>]+)\s*(==|=|!=|>|<)\s*([^\s=!<>]*)")
KEY = re.compile(r"(!?)\s*([^\s=!<>(),]+)")
COMMA = re.compile(r",(?![^(]*\))")

METADATA_FIELDS = ("metadata.name", "metadata.namespace")
FIELDS = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "events": (
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "source",
        "type",
        "reportingComponent",
    ),
}


def label_test(text: str) -> Test:
    """A test of an object's labels; an empty text passes all.

    Raises:
        ApiError: 400, the text is no selector.
    """
    requirements = [_requirement(part.strip()) for part in COMMA.split(text)] if text else []

    def test(content: Mapping[str, Any]) -> bool:
        labels = content["metadata"].get("labels") or {}
        return all(requirement.matches(labels) for requirement in requirements)

    return test


def _requirement(text: str) -> Requirement:
    if found := SET.fullmatch(text):
        values = tuple(value.strip() for value in found[3].split(","))
        return Requirement(found[1], "In" if found[2] == "in" else "NotIn", values)
    if found := PAIR.fullmatch(text):
        names = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
        return Requirement(found[1], names[found[2]], (found[3],))
    if found := KEY.fullmatch(text):
        return Requirement(found[2], "DoesNotExist" if found[1] else "Exists")
    raise bad_request(f"unable to parse requirement: {text!r}")


def selects(selector: Mapping[str, Any] | None, content: Mapping[str, Any]) -> bool:
    """Whether a label selector object picks an object; an empty one picks all, none picks none."""
    if selector is None:
        return False
    lines = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for line in selector.get("matchExpressions") or ():
        values = f"({','.join(line.get('values') or ())})"
        texts = {"In": f"in {values}", "NotIn": f"notin {values}", "Exists": "", "DoesNotExist": ""}
        lead = "!" if line["operator"] == "DoesNotExist" else ""
        lines.append(f"{lead}{line['key']} {texts[line['operator']]}".strip())
    return label_test(",".join(lines))(content)


def field_test(text: str, resource: Resource) -> Test:
    """A test of an object's fields; an empty text passes all.

    Raises:
        ApiError: 400, the kind does not know such a field.
    """
    wanted: list[tuple[tuple[str, ...], bool, str]] = []
    for part in text.split(",") if text else ():
        found = PAIR.fullmatch(part)
        if not found:
            raise bad_request(f"invalid selector: {part!r}; can't understand {part!r}")
        known = (*METADATA_FIELDS, *FIELDS.get(resource.qualified, ()))
        if found[1] not in known:
            raise bad_request(f"field label not supported: {found[1]}")
        wanted.append((tuple(found[1].split(".")), found[2] != "!=", found[3]))
    return lambda content: all((_text(content, path) == value) == equal for path, equal, value in wanted)


def _text(content: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = content
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return ("false" if path[-1] in ("unschedulable", "hostNetwork") else "") if value is None else str(value)
