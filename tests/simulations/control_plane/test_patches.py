# SPDX-License-Identifier: Apache-2.0
"""The kinds of patches by hand: RFC 7386, RFC 6902, strategic merge, server-side apply."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shoal_simulations.control_plane.apply import apply
from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.patches import json_patch, merge, strategic

RFC_7386: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7386)
def test_merge_as_in_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merge(target, patch) == result
    assert target == before


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a/b": {"~": 1}}, [{"op": "replace", "path": "/a~1b/~0", "value": 2}], {"a/b": {"~": 2}}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a/0", "path": "/b"}], {"a": [1], "b": 1}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 1}}], {"b": 1}),
    ],
)
def test_json_patch_as_in_rfc_6902(target: Any, operations: Any, result: Any) -> None:
    assert json_patch(target, operations) == result


@pytest.mark.parametrize(
    "step",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/list/3", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "other", "path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_hold_is_refused(step: Any) -> None:
    with pytest.raises(ApiError) as caught:
        json_patch({"a": 1, "list": []}, [step])
    assert caught.value.code == 422


def test_strategic_merges_lists_by_key() -> None:
    target = {
        "containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}],
        "tolerations": [{"key": "k"}],
    }
    patch = {"containers": [{"name": "a", "image": "2"}, {"name": "c"}], "tolerations": []}
    assert strategic(target, patch) == {
        "containers": [{"name": "a", "image": "2", "args": ["x"]}, {"name": "b"}, {"name": "c"}],
        "tolerations": [],
    }


def test_strategic_directives() -> None:
    target = {"containers": [{"name": "a"}, {"name": "b"}], "finalizers": ["x", "y"], "labels": {"a": "1"}}
    assert strategic(target, {"containers": [{"name": "a", "$patch": "delete"}]})["containers"] == [
        {"name": "b"}
    ]
    assert strategic(target, {"labels": {"$patch": "replace", "b": "2"}})["labels"] == {"b": "2"}
    assert strategic(target, {"$deleteFromPrimitiveList/finalizers": ["x"]})["finalizers"] == ["y"]
    assert strategic(target, {"finalizers": ["z", "x"]})["finalizers"] == ["x", "y", "z"]
    assert strategic(target, {"$setElementOrder/containers": [{"name": "b"}]}) == target
    with pytest.raises(ApiError, match="merge key"):
        strategic(target, {"containers": [{"image": "x"}]})


def _apply(
    live: dict[str, Any], spec: dict[str, Any], manager: str, *, force: bool = False
) -> dict[str, Any]:
    wanted = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, **spec}
    return apply(live, wanted, manager, "", force=force, now=0)


def test_apply_removes_what_its_manager_no_longer_names() -> None:
    live = _apply({"metadata": {"name": "x"}, "other": 1}, {"spec": {"a": 1, "b": {"c": 2}}}, "one")
    live = _apply(live, {"spec": {"a": 1}}, "one")
    assert (live["spec"], live["other"]) == ({"a": 1}, 1)  # kube-apiserver 1.36.2 takes the empty object too


def test_apply_owns_elements_of_lists() -> None:
    live = _apply({"metadata": {"name": "x"}}, {"conditions": [{"type": "Ready", "status": "True"}]}, "one")
    live = _apply(live, {"conditions": [{"type": "Loaded", "status": "True"}]}, "two")
    assert [c["type"] for c in live["conditions"]] == ["Ready", "Loaded"]
    live = _apply(live, {"conditions": []}, "one")
    assert [c["type"] for c in live["conditions"]] == ["Loaded"]


def test_apply_conflicts_only_over_different_values() -> None:
    live = _apply({"metadata": {"name": "x"}}, {"spec": {"a": 1, "b": 1}}, "one")
    assert _apply(live, {"spec": {"a": 1}}, "two")["spec"] == {"a": 1, "b": 1}
    with pytest.raises(ApiError, match=r'conflict with "one": \.spec\.a') as caught:
        _apply(live, {"spec": {"a": 2}}, "two")
    assert caught.value.code == 409
    forced = _apply(live, {"spec": {"a": 2}}, "two", force=True)
    assert forced["spec"] == {"a": 2, "b": 1}
    assert _apply(forced, {"spec": {}}, "one")["spec"] == {"a": 2}
