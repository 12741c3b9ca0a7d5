# SPDX-License-Identifier: Apache-2.0
"""Tables of values equal a plain dictionary, whatever order, duplicates and oddities samples come with."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.collect.features import COLUMN, LIVE_FEATURES
from shoal_client.collect.values import MAX_AGE, LiveValues

NODES = ("a", "b", "c")
NAMES = ("cpu_used", "load_1m", "ready")
HIGHEST = {f.name: f.high for f in LIVE_FEATURES}

odd = st.sampled_from([math.nan, math.inf, -math.inf, 1e30])
sample = st.tuples(
    st.sampled_from([*NODES, "stranger"]),
    st.sampled_from([*NAMES, ""]),
    st.one_of(st.floats(0, 10), odd),
    st.integers(0, 200).map(float),
)
batches = st.lists(st.lists(sample, max_size=8), max_size=6)


def put(values: LiveValues, batch: list[tuple[str, str, float, float]]) -> int:
    rows = np.array([values.row(node) for node, *_ in batch], dtype=np.int64)
    columns = np.array([COLUMN.get(name, -1) for _, name, *_ in batch], dtype=np.int64)
    numbers, times = np.array([[v, t] for *_, v, t in batch]).reshape(-1, 2).T
    return values.put_many(rows, columns, numbers, times)


def expected(known: dict[tuple[str, str], tuple[float, float]], batch) -> int:
    """Take a batch up into the dictionary; how many places it claims twice."""
    places = [(node, name) for node, name, *_ in batch if node in NODES and name]
    for node, name, number, at in batch:
        place = node, name
        if places.count(place) != 1 or not abs(number) <= 10 * HIGHEST[name]:
            continue
        if at >= known.get(place, (0.0, -math.inf))[1]:
            known[place] = number, at
    return sum(places.count(p) > 1 for p in set(places))


@settings(deadline=None, derandomize=True, max_examples=80)
@given(batches, st.integers(200, 500).map(float))
def test_a_table_is_a_dictionary_of_last_good_values(sent, now: float) -> None:
    values, known = LiveValues().copy(NODES), {}
    for batch in sent:
        assert put(values, batch) == expected(known, batch)
    for node in NODES:
        for name in NAMES:
            number, at = known.get((node, name), (0.0, -math.inf))
            fresh = now - at <= MAX_AGE[COLUMN[name]]
            assert values.get(node, name, now) == ((number, now - at) if fresh else None)
    table = values.matrix(now)
    assert np.isfinite(table.values).all()
    assert table.known.sum() == sum(
        values.get(n, f.name, now) is not None for n in NODES for f in LIVE_FEATURES
    )
    kept = values.copy(["c", "d"])
    assert kept.get("c", "cpu_used", now) == values.get("c", "cpu_used", now)
    assert kept.get("d", "cpu_used", now) is None
