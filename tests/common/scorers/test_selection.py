# SPDX-License-Identifier: Apache-2.0
"""The one rule that takes the best candidate, by hand."""

import numpy as np

from shoal_common.scorers.base import Scores, select, taken_quotas


def scores(*rows):
    logits = np.array(rows, np.float32)[..., None]
    return Scores(logits, np.tile(np.array([0.5, 1.0], np.float32), (*logits.shape, 1)))


def mask(*rows):
    return np.array(rows, bool)[..., None]


def test_the_best_feasible_wins_and_ties_go_to_the_first():
    given = scores([1, 9, 5, 5], [2, 2, 2, 2])
    assert select(given, mask([1, 0, 1, 1], [0, 1, 1, 1])).tolist() == [2, 1]


def test_ties_are_drawn_with_a_generator():
    given = scores(*[[3, 7, 7, 7]] * 3000)
    chosen = select(given, mask(*[[1, 1, 0, 1]] * 3000), np.random.default_rng(0))
    assert set(chosen) == {1, 3}
    assert abs((chosen == 1).mean() - 0.5) < 0.05


def test_an_empty_mask_or_a_number_that_is_none_abstains():
    given = scores([1, 2], [np.nan, 2], [1, np.inf], [np.nan, 2])
    chosen = select(given, mask([0, 0], [1, 1], [1, 1], [0, 1]))
    assert chosen.tolist() == [-1, -1, -1, 1]
    given.quotas[3, 1] = np.nan
    assert select(given, mask([0, 0], [1, 1], [1, 1], [0, 1]))[3] == -1
    assert taken_quotas(given, np.array([-1, -1, -1, 0])).tolist() == [[1, 1], [1, 1], [1, 1], [0.5, 1]]


def test_profiles_are_flat_candidates_with_their_own_quotas():
    given = Scores(
        np.array([[[0, 1], [5, 2]]], np.float32), np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    )
    chosen = select(given, np.array([[[True, True], [False, True]]]))
    assert chosen.tolist() == [3]
    assert taken_quotas(given, chosen).tolist() == [[6, 7]]
