# SPDX-License-Identifier: Apache-2.0
"""The emulated API answers as kube-apiserver v1.36.2 did, request by request (api_answers.json)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import recorded_requests as recorded

from shoal_simulations.control_plane import ApiServer

REAL: dict[str, Any] = json.loads(recorded.RECORDED.read_text())

OTHER_WORDS = {
    "pod of another kind",
    "list by a bad label",
    "bad continue",
    "missing resource",
    "resources by the main resource",  # a real server appends a diff
    "selector without gate",
    "patch of no path",
    "patch of a failed test",
    "patch of an unknown kind",
    "bind another uid",
    "delete another uid",
    "method",
}
"""Refused alike (code and reason), in other words."""

OTHER_CODES = {
    "body with a version": 400,  # a real server answers 500
    "bind without target": 400,  # a real server answers 500
}

LEAVES_OUT = {
    "budget": ["status"],  # counts of a budget that no controller has looked at
    "quota": ["status"],
    "deployment": ["spec", "status"],  # defaults of templates
    "resize a bound pod": ["metadata"],  # `bindings` does not copy the zone, `binding` does
}


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    with ApiServer() as api:
        answers = {name: recorded.ask(api.url, step) for name, step in recorded.STEPS.items()}
    return {name: [code, recorded.comparable(answer)] for name, (code, answer) in answers.items()}


def _without(answer: Any, keys: list[str]) -> Any:
    return {k: v for k, v in answer.items() if k not in keys} if keys else answer


@pytest.mark.parametrize("name", recorded.STEPS)
def test_a_request_is_answered_as_by_a_real_server(name: str, ours: dict[str, Any]) -> None:
    (real_code, real), (code, answer) = (
        json.loads(json.dumps(recorded.comparable(found))) for found in (REAL[name], ours[name])
    )
    if name in OTHER_CODES:
        assert code == OTHER_CODES[name]
        return
    assert code == real_code
    if name in OTHER_WORDS:
        assert answer.get("reason") == real.get("reason")
    else:
        left_out = LEAVES_OUT.get(name, [])
        assert _without(answer, left_out) == _without(real, left_out)
