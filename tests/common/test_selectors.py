# SPDX-License-Identifier: Apache-2.0
"""Selectors and tolerations by hand."""

from __future__ import annotations

import pytest

from shoal_common.selectors import LabelSelector, NodeSelectorTerm, Requirement, Taint, Toleration

LABELS = {"disk": "ssd", "gen": "4", "serial": "9223372036854775808"}  # 2**63: Go's ParseInt refuses it


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("disk", "In", ("ssd", "nvme"), True),
        ("zone", "In", ("ssd",), False),
        ("disk", "NotIn", ("hdd",), True),
        ("zone", "NotIn", ("hdd",), True),
        ("disk", "NotIn", ("ssd",), False),
        ("disk", "Exists", (), True),
        ("disk", "DoesNotExist", (), False),
        ("gen", "Gt", ("3",), True),
        ("gen", "Gt", ("4",), False),
        ("gen", "Lt", ("5",), True),
        ("disk", "Lt", ("5",), False),
        ("zone", "Gt", ("0",), False),
        ("gen", "Gt", (), False),
        ("gen", "Lt", ("1_0",), False),
        ("gen", "Lt", ("9223372036854775807",), True),
        ("gen", "Lt", ("9223372036854775808",), False),
        ("serial", "Gt", ("3",), False),
    ],
)
def test_requirements(key: str, operator: str, values: tuple[str, ...], expected: bool) -> None:
    assert Requirement(key, operator, values).matches(LABELS) is expected


def test_an_empty_label_selector_matches_everything_and_an_empty_node_term_nothing() -> None:
    assert LabelSelector().matches(LABELS)
    assert not NodeSelectorTerm().matches("n", LABELS)


def test_match_fields_are_about_the_name() -> None:
    term = NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("n1",)),))
    assert term.matches("n1", LABELS)
    assert not term.matches("n2", LABELS)


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration("gpu", "Exists"), True),
        (Toleration("gpu", "Equal", "a100"), True),
        (Toleration("gpu", "Equal", "t4"), False),
        (Toleration("gpu", "Exists", effect="NoExecute"), False),
        (Toleration("gpu", "Exists", effect="NoSchedule"), True),
        (Toleration("other", "Exists"), False),
    ],
)
def test_tolerations(toleration: Toleration, expected: bool) -> None:
    assert toleration.tolerates(Taint("gpu", "a100", "NoSchedule")) is expected
