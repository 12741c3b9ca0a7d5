# SPDX-License-Identifier: Apache-2.0
"""Histograms keep every count in the right bucket, whatever bpftrace saw."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.collect.ebpf import Bucket, cumulative


def of_bpftrace(values: list[int]) -> list[Bucket]:
    """The buckets that bpftrace's hist() makes of whole numbers: powers of two, 0 and negative ones."""
    places = Counter(-1 if v < 0 else v.bit_length() for v in values)
    bounds = {place: (2 ** (place - 1), 2**place - 1) if place > 0 else (0, 0) for place in places}
    return [
        Bucket(n, max=-1) if place < 0 else Bucket(n, *bounds[place]) for place, n in sorted(places.items())
    ]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.integers(-5, 2**30), max_size=50))
def test_a_bucket_counts_what_is_below_its_bound(values: list[int]) -> None:
    rows = cumulative(of_bpftrace(values))
    assert [count for _, count in rows] == sorted(count for _, count in rows)
    assert rows[-1] == ("+Inf", len(values))
    for bound, count in rows[:-1]:
        assert count == sum(v < round(float(bound) * 1e6) for v in values)
