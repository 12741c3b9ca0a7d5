# SPDX-License-Identifier: Apache-2.0
"""JSON patch, JSON merge patch and Kubernetes' strategic merge patch. None changes what it is given.

Source: RFC 6902, RFC 7386, apimachinery pkg/util/strategicpatch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shoal_simulations.control_plane.failures import ApiError, bad_request

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "podIPs": "ip",
    "webhooks": "name",
}
"""Lists that are merged by the key of their elements; all others but the sets are replaced."""

SETS = ("finalizers",)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """Kubernetes' own: as `merge`, and known lists merge by key; `$patch` deletes or replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or () if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(key, result.get(key) or [], value)
        else:
            result[key] = strategic(result.get(key), value)
    return result


def list_key(name: str, items: Sequence[Any]) -> str:
    """The merge key of a list of this name, "" where it is atomic. `ports` differ between kinds."""
    if name == "ports" and items and isinstance(items[0], Mapping):
        return "containerPort" if "containerPort" in items[0] else "port"
    return MERGE_KEYS.get(name, "")


def _merge_list(name: str, target: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    if name in SETS:
        return [*target, *(item for item in patch if item not in target)]
    key = list_key(name, patch)
    if not key or not all(isinstance(item, Mapping) for item in patch):
        return copy.deepcopy(list(patch))
    if any(item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [copy.deepcopy(item) for item in patch if "$patch" not in item]
    result = [dict(item) for item in target]
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {dict(item)} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != item[key]]
        elif at is None:
            result.append(strategic({}, item))
        else:
            result[at] = strategic(result[at], item)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902.

    Raises:
        ApiError: 400, this is no list of operations; 422, a path does not exist or a test fails.
    """
    if not isinstance(operations, list) or not all(isinstance(step, Mapping) for step in operations):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    document = {"": copy.deepcopy(target)}
    for step in operations:
        try:
            _apply(document, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            text = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", text, {"causes": [{"message": str(error)}]}) from error
    return document[""]


def _apply(document: Any, step: Mapping[str, Any]) -> None:
    parent, last = _walk(document, step["path"])
    match step["op"]:
        case "add":
            _insert(parent, last, copy.deepcopy(step["value"]))
        case "remove":
            del parent[_index(parent, last)]
        case "replace":
            _insert_at(parent, last, copy.deepcopy(step["value"]))
        case "test":
            if parent[_index(parent, last)] != step["value"]:
                raise ValueError(f"testing value {step['path']} failed")
        case "copy" | "move":
            origin, name = _walk(document, step["from"])
            value = copy.deepcopy(origin[_index(origin, name)])
            if step["op"] == "move":
                del origin[_index(origin, name)]
            _insert(parent, last, value)
        case operation:
            raise ValueError(f"unexpected operation {operation}")


def _walk(document: Any, path: str) -> tuple[Any, str]:
    """The object or list that holds what a JSON pointer names, and the last step to it."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]
    parent: Any = document
    for step in steps[:-1]:
        parent = parent[_index(parent, step)]
    return parent, steps[-1]


def _index(parent: Any, step: str) -> Any:
    return int(step) if isinstance(parent, list) else step


def _insert(parent: Any, step: str, value: Any) -> None:
    if not isinstance(parent, list):
        parent[step] = value
    elif step == "-":
        parent.append(value)
    else:
        if not 0 <= int(step) <= len(parent):
            raise IndexError(f"index {step} out of range")
        parent.insert(int(step), value)


def _insert_at(parent: Any, step: str, value: Any) -> None:
    at = _index(parent, step)
    parent[at]  # a missing place is an error
    parent[at] = value
