# SPDX-License-Identifier: Apache-2.0
"""Server-side apply: who owns which fields, what an owner no longer names is removed.

Source: structured-merge-diff and KEP-555. Where we differ: only managers that apply own fields, those that
update or patch do not; lists are merged by the keys that strategic merge patch knows, for every kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.patches import list_key, strategic

Path = tuple[str, ...]
UNOWNED = ("f:apiVersion", "f:kind")
OWNED_METADATA = ("f:labels", "f:annotations", "f:finalizers", "f:ownerReferences")


def apply(
    live: Mapping[str, Any],
    wanted: Mapping[str, Any],
    manager: str,
    subresource: str,
    *,
    force: bool,
    now: float,
) -> dict[str, Any]:
    """The live object after `manager` applied `wanted` to it.

    Raises:
        ApiError: 409, another manager applied another value to one of the fields, without `force`.
    """
    entries = list(live.get("metadata", {}).get("managedFields") or ())
    identity = (manager, subresource)
    before = _fields(entries, identity)
    others = {_identity(e): set(_paths(e["fieldsV1"])) for e in entries if _identity(e) != identity}
    owned = set(_paths(_owned(wanted)))
    taken = {
        path: holder[0]
        for holder, paths in others.items()
        for path in paths & owned
        if _value(live, path) != _value(wanted, path)
    }
    if taken and not force:
        raise _conflict(taken)
    shared = set().union(*others.values()) if others else set()
    result: Any = strategic(live, wanted)
    for path in sorted(before - owned - shared, key=len):
        _remove(result, path)
    kept = [_without(e, set(taken)) for e in entries if _identity(e) != identity]
    mine = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": wanted["apiVersion"],
        "time": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "fieldsType": "FieldsV1",
        "fieldsV1": _owned(wanted),
        **({"subresource": subresource} if subresource else {}),
    }
    result["metadata"] = {**result["metadata"], "managedFields": [*kept, mine]}
    return dict(result)


def _conflict(taken: Mapping[Path, str]) -> ApiError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{holder}"', "field": _shown(path)}
        for path, holder in sorted(taken.items())
    ]
    by_holder: dict[str, list[str]] = {}
    for path, holder in sorted(taken.items()):
        by_holder.setdefault(holder, []).append(_shown(path))
    listed = "\n".join(
        f'conflict with "{holder}": {fields[0]}'
        if len(fields) == 1
        else "\n- ".join((f'conflicts with "{holder}":', *fields))
        for holder, fields in by_holder.items()
    )
    word = "conflict" if len(causes) == 1 else "conflicts"
    message = f"Apply failed with {len(causes)} {word}: {listed}"
    return ApiError(409, "Conflict", message, {"causes": causes})


def _identity(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["manager"], entry.get("subresource", "")


def _fields(entries: list[Mapping[str, Any]], identity: tuple[str, str]) -> set[Path]:
    return {path for e in entries if _identity(e) == identity for path in _paths(e["fieldsV1"])}


def _owned(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an applied object names, as a FieldsV1 tree; its identity is owned by nobody."""
    tree = {key: value for key, value in _tree(wanted).items() if key not in UNOWNED}
    metadata = {key: value for key, value in tree.pop("f:metadata", {}).items() if key in OWNED_METADATA}
    return {**tree, "f:metadata": metadata} if metadata else tree


def _tree(content: Mapping[str, Any]) -> dict[str, Any]:
    return {f"f:{name}": _subtree(name, value) for name, value in content.items()}


def _subtree(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return _tree(value)
    key = list_key(name, value) if isinstance(value, list) else ""
    if not key:
        return {}
    return {f"k:{json.dumps({key: item[key]}, separators=(',', ':'))}": _tree(item) for item in value}


def _paths(tree: Mapping[str, Any], prefix: Path = ()) -> Iterator[Path]:
    """Every leaf, and every element of a keyed list (so that an element goes when all of it is dropped)."""
    for step, below in tree.items():
        path = (*prefix, step)
        if not below or step.startswith("k:"):
            yield path
        yield from _paths(below, path)


def _step(parent: Any, step: str) -> Any:
    """Where a step leads: the value and its index in the parent; (None, None) when it is not there."""
    name = step[2:]
    if step.startswith("f:"):
        found = isinstance(parent, Mapping) and name in parent
        return (parent[name], name) if found else (None, None)
    wanted = json.loads(name)
    for index, item in enumerate(parent if isinstance(parent, list) else ()):
        if all(item.get(key) == value for key, value in wanted.items()):
            return item, index
    return None, None


def _value(content: Any, path: Path) -> Any:
    for step in path:
        content, _ = _step(content, step)
    return {} if path[-1].startswith("k:") else content


def _remove(content: Any, path: Path) -> None:
    """Take a field away, and the objects around it that it leaves empty: whoever owned it owned them."""
    parent = content
    for step in path[:-1]:
        parent, _ = _step(parent, step)
    _, index = _step(parent, path[-1])
    if index is not None:
        del parent[index]
        if not parent and len(path) > 2 and path[-2].startswith("f:"):
            _remove(content, path[:-1])


def _without(entry: Mapping[str, Any], lost: set[Path]) -> dict[str, Any]:
    def prune(tree: Mapping[str, Any], prefix: Path) -> dict[str, Any]:
        return {
            step: prune(below, (*prefix, step)) for step, below in tree.items() if (*prefix, step) not in lost
        }

    return {**entry, "fieldsV1": prune(entry["fieldsV1"], ())}


def _shown(path: Path) -> str:
    steps = (f".{s[2:]}" if s.startswith("f:") else f"[{s[2:]}]" for s in path)
    return "".join(steps)
