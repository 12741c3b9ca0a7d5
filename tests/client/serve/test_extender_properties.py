# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent, the extender answers: valid JSON, of the verb's kind, never a broken connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal_client.serve.extender import Extender
from shoal_simulations.control_plane.builders import pod

from .conftest import World

VERBS = ("prioritize", "filter", "bind", "preempt")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["Pod", "Nodes", "NodeNames", "nodenames", "PodUID", "Node", "NodeNameToVictims", "NodeNameToMetaVictims"]
)
PIECES = st.sampled_from(
    [
        pod("p") | {"metadata": {"name": "p", "uid": "u", "namespace": "default"}},
        ["n0", "n1"],
        {"items": [{"metadata": {"name": "n0"}}]},
        {"n0": {"Pods": [{"UID": "u"}]}},
        {"n0": {"Pods": None}},
    ]
)
REQUESTS = st.dictionaries(KEYS, PIECES | ANYTHING, max_size=5).map(json.dumps).map(str.encode)


def ask(world: World, verb: str, body: bytes) -> tuple[int, Any]:
    extender = Extender(world.service, lambda wanted: "", lambda asked: asked)
    code, text = asyncio.run(extender.answer(verb, body))
    return code, json.loads(text)


@given(verb=st.sampled_from(VERBS), body=REQUESTS | st.binary(max_size=40))
@settings(
    deadline=None,
    derandomize=True,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_request_has_an_answer_of_its_kind(world: World, verb: str, body: bytes) -> None:
    code, answer = ask(world, verb, body)
    assert code in (200, 400)
    if code == 400:
        assert verb in ("prioritize", "preempt")
        assert answer["Error"]
    elif verb == "prioritize":
        assert all(type(row["Score"]) is int and isinstance(row["Host"], str) for row in answer)
    elif verb == "preempt":
        assert isinstance(answer["NodeNameToMetaVictims"], dict)
    else:
        assert isinstance(answer["Error"], str)
        if verb == "filter" and not answer["Error"]:
            assert (answer["Nodes"] is None) is not (answer["NodeNames"] is None)


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_at_all_is_an_error_too(world: World, verb: str) -> None:
    _, answer = ask(world, verb, b"")
    assert "cannot be read" in answer["Error"]
