# SPDX-License-Identifier: Apache-2.0
"""Keeping a few of many candidates: what is kept, and that propensities stay exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal_client.experience.records import BEST, KEPT, Seen
from shoal_common.observation import FC, FN, FP, FT


def _seen(nodes, profiles=1, seed=0):
    rng = np.random.default_rng(seed)
    mask = rng.random((nodes, profiles)) < 0.9
    logits = rng.normal(size=(nodes, profiles)).astype(np.float32)
    chances = np.where(mask, np.exp(logits), 0)
    return Seen(
        node=np.arange(nodes, dtype=np.float16)[:, None].repeat(FN, 1),
        pair=np.zeros((nodes, FP), np.float16),
        task=np.zeros(FT, np.float16),
        ctx=np.zeros(FC, np.float16),
        mask=mask,
        logits=logits,
        propensity=(chances / chances.sum()).astype(np.float32),
        names=tuple(f"n{n}" for n in range(nodes)),
    )


def test_few_candidates_are_kept_as_they_are():
    seen = _seen(KEPT, 2)
    assert seen.reduced(17, np.random.default_rng(0)) == (seen, 17)


@pytest.mark.parametrize("profiles", [1, 3])
def test_of_many_the_taken_one_and_the_best_stay(profiles):
    seen = _seen(500, profiles, seed=1)
    scores = np.where(seen.mask, seen.logits, -np.inf).max(-1)
    best = {seen.names[n] for n in np.argsort(-scores)[:BEST]}
    for taken in np.flatnonzero(seen.mask.reshape(-1))[::97]:
        kept, at = seen.reduced(int(taken), np.random.default_rng(int(taken)))
        assert len(kept) == KEPT
        assert best <= set(kept.names)
        assert kept.names[at // profiles] == seen.names[taken // profiles]
        assert at % profiles == taken % profiles
        assert kept.mask.any(-1).all()
        assert kept.propensity.sum() == pytest.approx(1, abs=1e-5)
        assert [int(name[1:]) for name in kept.names] == list(kept.node[:, 0])


def test_without_a_choice_or_scores_the_others_are_drawn():
    seen = replace(_seen(200), logits=np.full((200, 1), np.nan, np.float32))
    kept, at = seen.reduced(-1, np.random.default_rng(0))
    assert (len(kept), at) == (KEPT, -1)


def test_an_infeasible_taken_node_is_kept_and_unknown_propensities_stay_unknown():
    seen = _seen(200, seed=3)
    seen = replace(seen, propensity=np.full_like(seen.propensity, np.nan))
    taken = int(np.flatnonzero(~seen.mask[:, 0])[0])
    kept, at = seen.reduced(taken, np.random.default_rng(0))
    assert not kept.mask[at, 0]
    assert np.isnan(kept.propensity).all()


def test_propensities_given_the_kept_candidates_are_exact():
    """Importance weights by kept propensities recover the mean under another policy on the kept sets.

    For every kept set S the logged choice must be distributed as the kept propensities say: then the mean of
    1[a = best of S by a score] / p(a | S) is 1.
    """
    seen, rng = _seen(90, seed=5), np.random.default_rng(1)
    chances = seen.propensity.reshape(-1).astype(np.float64)
    chances /= chances.sum()
    other = np.random.default_rng(2).random(90)  # a deterministic target: the kept node of the highest score
    weights, taken_best = [], 0
    for _ in range(6_000):
        kept, at = seen.reduced(int(rng.choice(90, p=chances)), rng)
        target = max(range(len(kept)), key=lambda k: other[int(kept.names[k][1:])])
        hit = at == target
        taken_best += hit
        weights.append(1 / kept.propensity[at, 0] if hit else 0.0)
    error = np.std(weights) / np.sqrt(len(weights))
    assert taken_best > 30
    assert abs(np.mean(weights) - 1) < 3 * error


def test_the_taken_candidate_is_as_likely_as_its_kept_propensity_says():
    """Calibration: taken candidates summed against their kept propensities, by decile."""
    seen, rng = _seen(300, seed=8), np.random.default_rng(4)
    chances = seen.propensity.reshape(-1).astype(np.float64)
    chances /= chances.sum()
    expected, happened = np.zeros(2), np.zeros(2)
    for _ in range(4_000):
        kept, at = seen.reduced(int(rng.choice(300, p=chances)), rng)
        best = np.argsort(-kept.logits[:, 0])[:BEST]
        expected += [kept.propensity[best].sum(), 1 - kept.propensity[best].sum()]
        happened += [at in best, at not in best]
    assert happened[0] == pytest.approx(expected[0], abs=4 * np.sqrt(expected[0]))


def test_packing_keeps_every_bit_and_notices_damage():
    seen = _seen(10, 2)
    hashes = [bytes([n] * 8) for n in range(10)]
    packed = seen.pack(hashes)
    back = Seen.unpack(packed)
    for name in ("node", "pair", "task", "ctx", "mask", "logits", "propensity"):
        np.testing.assert_array_equal(getattr(back, name), getattr(seen, name))
    assert back.names[3] == "0303030303030303"
    with pytest.raises(ValueError, match="9 names of 10"):
        Seen.unpack(seen.pack(hashes[:9]))
