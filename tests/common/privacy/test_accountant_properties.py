# SPDX-License-Identifier: Apache-2.0
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.privacy.accountant import Segment, epsilon

# few distinct (rate, noise) pairs: each costs tens of milliseconds once
segments = st.builds(
    Segment, st.sampled_from([0.001, 0.02, 1.0]), st.sampled_from([0.8, 2.0, 9.0]), st.integers(0, 10_000)
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(segments, max_size=5), segments)
def test_epsilon_never_decreases_and_is_sub_additive(history: list[Segment], more: Segment) -> None:
    before, after = epsilon(history, 1e-6), epsilon([*history, more], 1e-6)
    assert 0 <= before <= after
    assert after <= epsilon(history, 5e-7) + epsilon([more], 5e-7) + 1e-9


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(segments, min_size=1, max_size=3))
def test_a_smaller_delta_costs_more(history: list[Segment]) -> None:
    assert epsilon(history, 1e-9) >= epsilon(history, 1e-6) >= epsilon(history, 1e-3)
