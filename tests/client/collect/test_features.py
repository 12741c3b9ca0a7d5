# SPDX-License-Identifier: Apache-2.0
"""The feature table: names, bounds, the generated page, and PromQL that names no node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal_client.collect.features import COLUMN, LIVE_FEATURES, QUERIES, reference
from shoal_client.collect.queries import SOURCES, Query
from shoal_client.collect.values import LiveValues

ROOT = Path(__file__).parents[3]


def test_there_are_more_than_a_hundred_each_with_unit_bound_and_age() -> None:
    assert len(LIVE_FEATURES) > 100
    assert len(COLUMN) == len(LIVE_FEATURES)
    for feature in LIVE_FEATURES:
        assert feature.unit
        assert feature.doc
        assert feature.low < feature.high
    assert all(q.source in SOURCES and q.source.max_age_seconds > 0 for q in QUERIES)


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.name)
def test_a_query_is_one_for_all_nodes(query: Query) -> None:
    text = query.text(120)
    assert "$" not in text.replace('"$1"', "")
    assert "by (" in text
    assert 'node="' not in text
    assert len(query.index) == len(query.features)
    assert bool(query.label) == (len(query.features) > 1)


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "live-features.md").read_text() == reference()


def test_values_are_kept_as_long_as_their_source_allows() -> None:
    values = LiveValues().copy(["a", "b"])
    column = COLUMN["cpu_used"]
    values.put("a", column, 500.0, sampled=100.0)
    values.put("a", column, 400.0, sampled=90.0)  # an older sample that comes late
    values.put("stranger", column, 1.0, sampled=100.0)
    assert values.get("a", "cpu_used", 110.0) == (500.0, 10.0)
    assert values.get("a", "cpu_used", 220.0) == (500.0, 120.0)
    assert values.get("a", "cpu_used", 220.1) is None
    assert values.get("b", "cpu_used", 110.0) is None
    assert values.get("stranger", "cpu_used", 110.0) is None
    assert values.copy(["c", "a"]).get("a", "cpu_used", 110.0) == (500.0, 10.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e7])
def test_what_is_no_measurement_never_enters_a_table(value: float) -> None:
    values = LiveValues().copy(["a"])
    values.put("a", COLUMN["cpu_used"], value, sampled=0.0)
    table = values.matrix(1.0)
    assert not table.known.any()
    assert (table.values == 0).all()


def test_the_matrix_is_clipped_to_public_bounds() -> None:
    values = LiveValues().copy(["a"])
    values.put("a", COLUMN["load_1m"], 64.0, sampled=0.0)
    values.put("a", COLUMN["cpu_idle"], -0.01, sampled=0.0)
    table = values.matrix(1.0)
    assert table.values[0, COLUMN["load_1m"]] == 16.0
    assert table.values[0, COLUMN["cpu_idle"]] == 0.0
    assert table.known.sum() == 2
    assert table.age[0, COLUMN["load_1m"]] == 1.0
