# SPDX-License-Identifier: Apache-2.0
"""Names, units and labels of what the client exports, and the page that lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_client.collect.ebpf import EbpfCollector
from shoal_client.metrics import REGISTRY
from shoal_client.metrics_reference import LABELS, SECTIONS, reference, registered

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "metrics.md"
NAMES = sorted(registered())
UNITS = ("milliseconds", "millis", "_ms", "minutes", "hours", "kb", "_mb", "percent")
PRIVATE = {"pod", "uid", "node", "namespace", "tenant", "user", "owner", "app"}


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == reference()


def test_every_metric_of_the_registry_is_on_the_page() -> None:
    assert {family.name for family in REGISTRY.collect()} == set(NAMES)
    assert {family.name for family in EbpfCollector([]).collect()} == {"shoal_ebpf_up"}


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_follows_the_conventions(name: str) -> None:
    family = next(iter(registered()[name].describe()))
    assert name.startswith("shoal_")
    assert name == name.lower()
    assert not any(unit in name for unit in UNITS)
    assert family.documentation.endswith(".")
    assert family.type in ("counter", "gauge", "histogram")
    if family.type == "histogram":
        assert name.endswith("_seconds")
    assert sum(name.startswith(prefixes) for prefixes in SECTIONS.values()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_label_has_its_values_written_down(name: str) -> None:
    labels = registered()[name]._labelnames
    assert tuple(LABELS.get(name, {})) == labels
    assert not PRIVATE & set(labels)
    assert all(LABELS.get(name, {}).values())


def test_no_values_are_left_of_a_metric_that_is_gone() -> None:
    assert set(LABELS) <= set(NAMES)
