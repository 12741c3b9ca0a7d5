# SPDX-License-Identifier: Apache-2.0
"""GPU memory that is used outside the scheduler: the smaller of accounted and measured wins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.collect.measured import smaller_free
from shoal_common.cluster import MAX_GPUS


def padded(*milli: float) -> np.ndarray:
    return np.array([*milli, *[0.0] * (MAX_GPUS - len(milli))])


@pytest.mark.parametrize(
    ("accounted", "measured", "wanted"),
    [
        ((1000, 1000), (0.1, 1.0), (100, 1000)),  # somebody uses a GPU that nobody was given
        ((0, 1000), (1.0, 0.1), (0, 1000)),  # the pod of the full device was put on the other one
        ((250, 1000), (0.9, 0.5), (250, 900)),
        ((1000, 0), (0.0, 0.0), (0, 0)),
        ((500, 500), (1.0, 1.0), (500, 500)),  # a pod that uses less than it was given frees nothing
        ((500, 1000), (0.2,), (500, 1000)),  # one device is not told: nothing is known
        ((500, 1000), (), (500, 1000)),
    ],
)
def test_the_smaller_wins(accounted, measured, wanted) -> None:
    assert smaller_free(padded(*accounted), measured, 2).tolist() == padded(*wanted).tolist()


shares = st.lists(st.floats(0, 1), min_size=1, max_size=MAX_GPUS)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(shares, st.data())
def test_never_more_than_either(accounted: list[float], data: st.DataObject) -> None:
    n = len(accounted)
    measured = data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
    milli = padded(*[1000 * x for x in accounted])
    capped = smaller_free(milli, measured, n)
    assert (capped <= milli).all()
    assert sorted(capped[:n]) == sorted(np.minimum(sorted(milli[:n]), 1000 * np.sort(measured)))
