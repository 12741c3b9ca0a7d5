# SPDX-License-Identifier: Apache-2.0
"""Custom resources: what a CustomResourceDefinition serves, with defaults, pruning and structural checks.

Source: apiextensions-apiserver pkg/apiserver/schema. Not emulated: CEL rules, conversion between versions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_simulations.control_plane.failures import invalid
from shoal_simulations.control_plane.resources import Resource

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


@dataclass(frozen=True, slots=True)
class Schema:
    """The structural schema of one kind."""

    kind: str
    root: Mapping[str, Any]

    def admit(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The object with unknown fields pruned and defaults filled in.

        Raises:
            ApiError: 422 naming the first wrong field.
        """
        name = content["metadata"]["name"]
        body = {k: v for k, v in content.items() if k not in ("apiVersion", "kind", "metadata")}
        filled = _fill(self.root, copy.deepcopy(body)) if self.root else body
        for field, why in _faults(self.root, filled, ""):
            raise invalid(self.kind, name, (field, why))
        head = {k: content[k] for k in ("apiVersion", "kind", "metadata")}
        return {**head, **filled}


def served(definition: Mapping[str, Any]) -> Iterator[tuple[Resource, Schema]]:
    """The resources of a definition, one for each version that is served."""
    spec = definition["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        subresources = version.get("subresources") or {}
        resource = Resource(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            namespaced=spec.get("scope") == "Namespaced",
            status="status" in subresources,
            scale="scale" in subresources,
            generation=True,
            custom=True,
            short_names=tuple(names.get("shortNames", ())),
            categories=tuple(names.get("categories", ())),
        )
        root = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        yield resource, Schema(f"{names['kind']}.{spec['group']}", root)


def established(definition: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The status of a definition that is served."""
    spec = definition["spec"]
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now}
        for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
    ]
    stored = [version["name"] for version in spec["versions"] if version.get("storage", True)]
    return {"conditions": conditions, "acceptedNames": spec["names"], "storedVersions": stored}


def _fill(schema: Mapping[str, Any], value: Any) -> Any:
    """Defaults in, unknown fields out."""
    if isinstance(value, list) and "items" in schema:
        return [_fill(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {k: _fill(inner, v) if isinstance(inner, Mapping) else v for k, v in value.items()}
    if "properties" not in schema:
        return value if schema.get("x-kubernetes-preserve-unknown-fields") or "type" not in schema else {}
    keep = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    result = {k: v for k, v in value.items() if k in schema["properties"] or keep}
    for name, inner in schema["properties"].items():
        if name not in result and "default" in inner:
            result[name] = copy.deepcopy(inner["default"])
        if name in result:
            result[name] = _fill(inner, result[name])
    return result


def _faults(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every place where the value breaks the schema, with why."""
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        return
    allowed = TYPES.get(schema.get("type", ""))
    wrong_bool = isinstance(value, bool) and schema.get("type") != "boolean"
    if allowed and (not isinstance(value, allowed) or wrong_bool):
        kind = schema["type"]
        yield path, f'Invalid value: "{type(value).__name__}": {path} in body must be of type {kind}'
        return
    yield from _scalar_faults(schema, value, path)
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield _join(path, name), "Required value"
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _faults(inner, value[name], _join(path, name))
        if isinstance(schema.get("additionalProperties"), Mapping):
            for name, item in value.items():
                yield from _faults(schema["additionalProperties"], item, _join(path, name))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _faults(schema["items"], item, f"{path}[{index}]")


def _scalar_faults(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[tuple[str, str]]:
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(f'"{item}"' for item in schema["enum"])
        yield path, f'Unsupported value: "{value}": supported values: {known}'
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield path, f"Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
        if "maximum" in schema and value > schema["maximum"]:
            yield path, f"Invalid value: {value}: should be less than or equal to {schema['maximum']}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, f"Invalid value: \"{value}\": should match '{schema['pattern']}'"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
