# SPDX-License-Identifier: Apache-2.0
"""Parity with kube-scheduler v1.36.2: 400 random cases and what the real plugins answered."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from shoal_common.kube.cases import Case, read_cases
from shoal_common.kube.profile import evaluate

GOLDEN = Path(os.environ.get("SHOAL_DATA", "")) / "kube_golden"
pytestmark = pytest.mark.skipif(
    "SHOAL_DATA" not in os.environ or not GOLDEN.is_dir(), reason="needs SHOAL_DATA with kube_golden"
)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return read_cases(GOLDEN / "cases.json.gz")


@pytest.fixture(scope="module")
def golden() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(
        gzip.decompress((GOLDEN / "golden-v1.36.2.json.gz").read_bytes())
    )
    return rows


def test_every_case_is_answered_like_the_real_scheduler(
    cases: list[Case], golden: list[dict[str, object]]
) -> None:
    assert len(cases) == len(golden) == 400
    wrong = [
        case.name
        for case, expected in zip(cases, golden, strict=True)
        if evaluate(case.snapshot, case.pod).document(case.name) != expected
    ]
    assert wrong == []


def test_the_older_version_differs_in_balanced_allocation_only(cases: list[Case]) -> None:
    differing = set()
    for case in cases:
        old, new = (evaluate(case.snapshot, case.pod, version) for version in ("1.35", "1.36"))
        assert (old.feasible, old.failures, old.codes) == (new.feasible, new.failures, new.codes)
        for node, row in new.scores.items():
            assert row.keys() == old.scores[node].keys()
            differing |= {plugin for plugin, value in row.items() if value != old.scores[node][plugin]}
    assert differing == {"NodeResourcesBalancedAllocation"}
