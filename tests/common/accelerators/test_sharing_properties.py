# SPDX-License-Identifier: Apache-2.0
"""Milli-GPU is conserved, never negative, and a chosen device always holds the pod."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.accelerators.sharing import MILLI, allocate, fits, free, tightest

LEFT = st.lists(st.integers(0, MILLI), min_size=1, max_size=8)
REQUEST = st.one_of(
    st.tuples(st.integers(1, MILLI), st.just(1)), st.tuples(st.just(MILLI), st.integers(1, 8))
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(LEFT, REQUEST)
def test_choose_allocate_free(left: list[int], request: tuple[int, int]) -> None:
    gpu_milli, num_gpu = request
    devices = np.array(left, dtype=np.int64)
    able = [d for d, m in enumerate(left) if m >= gpu_milli]
    assert fits(devices, len(left), gpu_milli, num_gpu) == (len(able) >= num_gpu)
    chosen = tightest(devices, len(left), gpu_milli, num_gpu)
    if len(able) < num_gpu:
        assert chosen == 0
        return
    taken = [d for d in range(len(left)) if chosen >> d & 1]
    assert len(taken) == num_gpu
    if gpu_milli < MILLI:
        assert taken == [min(able, key=lambda d: (left[d], d))]
    else:
        assert taken == able[:num_gpu]
    allocate(devices, chosen, gpu_milli)
    assert devices.sum() == sum(left) - gpu_milli * num_gpu
    assert devices.min() >= 0
    free(devices, chosen, gpu_milli)
    assert devices.tolist() == left


def test_too_much_is_refused_and_changes_nothing() -> None:
    devices = np.array([1000, 300], dtype=np.int64)
    with pytest.raises(ValueError, match="less milli-GPU"):
        allocate(devices, 0b11, 400)
    with pytest.raises(ValueError, match="more than 1000"):
        free(devices, 0b11, 400)
    assert devices.tolist() == [1000, 300]
