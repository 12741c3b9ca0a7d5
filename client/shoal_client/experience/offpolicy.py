# SPDX-License-Identifier: Apache-2.0
"""What a candidate policy would have got, estimated from what another one logged.

One decision is one choice among known candidates with known probabilities (a contextual bandit): r is the
scalar reward, mu the logged propensity of the taken candidate, pi the candidate policy's, q a model of r:

- IPS (Horvitz & Thompson 1952):   mean of w r, w = pi / mu. Unbiased; wild where mu is small.
- SNIPS (Swaminathan & Joachims 2015): sum of w r / sum of w. Biased by O(1/n), much calmer.
- DM: mean of sum_a pi(a) q(a). As good as the model; its interval says nothing about the model's bias.
- DR (Dudik et al. 2011): DM + mean of w (r - q). Unbiased where either mu or q is right.

q is a ridge regression, fitted on other blocks of time than those that it is used on (cross-fitting,
Chernozhukov et al. 2018). Decisions that are close in time share nodes and load, so an interval comes from
the means of consecutive blocks (batch means, Student's t), not from single decisions. Decisions without a
known propensity are left out and counted: what a scheduler chose by itself tells nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal_client.experience.records import F32, F64, I64, KEPT, Stored
from shoal_client.experience.source import transitions
from shoal_common.errors import InputError
from shoal_common.gate import student
from shoal_common.observation import Observation
from shoal_common.reward import ObjectiveWeights, scalarise
from shoal_common.scorers.base import Scorer
from shoal_common.transition import Transitions

CONFIDENCE: Final = 0.95
FEWEST: Final = 20  # decisions below which no interval is given
FOLDS: Final = 5
RIDGE: Final = 1.0  # penalty on standardised features
CLASSES: Final = 4  # the first task features, one-hot
SCORED_TOGETHER: Final = 256


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval; NaN bounds where there are too few decisions."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Estimates of a candidate's mean reward a decision, and how far they can be trusted."""

    logged: Estimate  # what the logging policy got on the same decisions
    ips: Estimate
    snips: Estimate
    dm: Estimate
    dr: Estimate
    gain: Estimate  # DR minus what was logged, paired
    effective_sample_size: float  # (sum w)^2 / sum w^2
    largest_weight: float
    used: int
    excluded: dict[str, int]  # by reason


def estimate(
    reward: F64,
    behaviour: F64,
    target: F64,
    taken: F64,
    expected: F64,
    excluded: dict[str, int] | None = None,
) -> OffPolicy:
    """Estimates from D decisions in time order, all f64[D].

    `behaviour` and `target` are the probabilities of the taken candidates, `taken` the model's reward for
    them, `expected` its mean over the candidates under the target.
    """
    if not (np.isfinite(behaviour).all() and (behaviour > 0).all() and (behaviour <= 1 + 1e-6).all()):
        raise InputError(
            "off-policy", "behaviour", "a propensity is not in (0, 1]", "leave out what is not known"
        )
    weight = target / behaviour
    total, squares = float(weight.sum()), float((weight**2).sum())
    snips = float((weight * reward).sum() / total) if total > 0 else math.nan
    spread = weight * (reward - snips) / (weight.mean() if total > 0 else 1.0)
    robust = expected + weight * (reward - taken)
    return OffPolicy(
        logged=mean_with_interval(reward),
        ips=mean_with_interval(weight * reward),
        snips=_shifted(mean_with_interval(spread), snips),
        dm=mean_with_interval(expected),
        dr=mean_with_interval(robust),
        gain=mean_with_interval(robust - reward),
        effective_sample_size=total**2 / squares if squares > 0 else 0.0,
        largest_weight=float(weight.max(initial=0.0)),
        used=len(reward),
        excluded=excluded or {},
    )


def mean_with_interval(values: F64) -> Estimate:
    """The mean of values in time order and its interval from the means of consecutive blocks."""
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if len(values) < FEWEST:
        return Estimate(mean, math.nan, math.nan)
    blocks = min(100, max(10, math.isqrt(len(values))))
    parts = np.array_split(values, blocks)
    sizes = np.array([len(part) for part in parts])
    means = np.array([part.mean() for part in parts])
    share = sizes / sizes.sum()
    error = math.sqrt(float((share**2 * (means - mean) ** 2).sum()) * blocks / (blocks - 1))
    half = student(0.5 + CONFIDENCE / 2, blocks - 1) * error
    return Estimate(mean, mean - half, mean + half)


def evaluate(
    rows: Sequence[Stored],
    scorer: Scorer,
    weights: ObjectiveWeights | None = None,
    temperature: float = 0.0,
    profiles: int = 1,
) -> OffPolicy:
    """What a scorer would have got on logged decisions, with its choice softened by `temperature`.

    Temperature 0 takes the best candidate; above it the probability is proportional to
    exp(score / temperature). Rewards are weighed by `weights`.
    """
    weights = weights or ObjectiveWeights()
    learnable = [row for row in rows if row.result is not None and row.result.learnable]
    log = transitions(learnable, profiles)
    sound = np.flatnonzero(log.closed)
    reward = scalarise(log.reward, weights.array()).astype(np.float64)
    known = sound[np.isfinite(log.propensity[sound]) & (log.propensity[sound] > 0)]
    excluded = {
        "open or not learnable": len(rows) - len(sound),
        "propensity not known": len(sound) - len(known),
    }
    if not len(known):
        nothing = np.zeros(0)
        return estimate(nothing, nothing, nothing, nothing, nothing, excluded)
    target = _probabilities(log, known, scorer, weights, temperature)
    model = _model(log, sound, reward, known)
    action = log.action[known]
    picked = np.arange(len(known)), action
    return estimate(
        reward[known],
        log.propensity[known].astype(np.float64),
        target[picked],
        model[picked],
        (target * model).sum(-1),
        excluded,
    )


def _probabilities(
    log: Transitions, rows: I64, scorer: Scorer, weights: ObjectiveWeights, temperature: float
) -> F64:
    """The scorer's choice probabilities [D, K * P] on these rows; 0 throughout where it abstains."""
    parts = []
    for begin in range(0, len(rows), SCORED_TOGETHER):
        some = rows[begin : begin + SCORED_TOGETHER]
        mask = log.mask[some]
        obs = Observation(
            node=log.node[some].astype(np.float32),
            pair=log.pair[some].astype(np.float32),
            task=log.task[some].astype(np.float32),
            ctx=log.ctx[some].astype(np.float32),
            w=np.repeat(weights.array()[None], len(some), axis=0),
            mask=mask,
            plugin=np.zeros((len(some), KEPT, 0), np.float32),
        )
        parts.append(softened(scorer.score(obs).logits, mask, temperature))
    return np.concatenate(parts)


def softened(logits: F32, mask: npt.NDArray[np.bool_], temperature: float) -> F64:
    """Choice probabilities [B, N * P] of scores [B, N, P] under a mask; 0 throughout where none is feasible
    or a feasible score is not finite."""
    flat, feasible = logits.reshape(len(logits), -1).astype(np.float64), mask.reshape(len(mask), -1)
    sound = np.logical_and((np.isfinite(flat) | ~feasible).all(-1), feasible.any(-1))
    flat = np.where(feasible & sound[:, None], flat, -np.inf)
    best = np.where(sound, flat.max(-1, initial=-np.inf), 0.0)[:, None]
    if temperature > 0:
        mass = np.exp((flat - best) / temperature)
    else:
        mass = np.zeros_like(flat)
        mass[np.arange(len(flat)), flat.argmax(-1)] = 1.0
    mass = mass * sound[:, None]
    shares: F64 = mass / np.maximum(mass.sum(-1, keepdims=True), 1e-300)
    return shares


def _model(log: Transitions, fitted: I64, reward: F64, rows: I64) -> F64:
    """The reward that a ridge regression expects of every candidate [len(rows), K * P].

    For each row it was fitted on other folds; folds are consecutive in time.
    """
    profiles = log.mask.shape[2]
    fold = np.minimum(np.arange(len(log)) * FOLDS // max(1, len(log)), FOLDS - 1)
    out = np.zeros((len(rows), KEPT * profiles))
    node = log.action // profiles
    taken = _features(log, fitted, node[fitted][:, None])[:, 0]
    for f in range(FOLDS):
        here = np.flatnonzero(fold[rows] == f)
        others = fold[fitted] != f
        if not len(here):
            continue
        coefficients = ridge(taken[others], reward[fitted][others])
        candidates = _features(log, rows[here], np.broadcast_to(np.arange(KEPT), (len(here), KEPT)))
        out[here] = np.repeat(candidates @ coefficients, profiles, axis=1)
    return out


def ridge(features: F64, reward: F64) -> F64:
    """Coefficients [F] of the penalised least squares; column 0 is the constant and is not penalised."""
    if not len(reward):
        return np.zeros(features.shape[1])
    scale = features.std(0)
    scale[scale == 0] = 1.0
    scaled = features / scale
    penalty = np.eye(features.shape[1]) * RIDGE
    penalty[0, 0] = 1e-9
    solved: F64 = np.linalg.solve(scaled.T @ scaled + penalty, scaled.T @ reward) / scale
    return solved


def _features(log: Transitions, rows: I64, nodes: I64) -> F64:
    """What the model sees of candidates `nodes` [D, C] of decisions `rows` [D]: f64[D, C, F]."""
    node = log.node[rows[:, None], nodes].astype(np.float64)
    pair = log.pair[rows[:, None], nodes].astype(np.float64)
    size = (*nodes.shape, -1)
    task = np.broadcast_to(log.task[rows][:, None].astype(np.float64), (*nodes.shape, log.task.shape[1]))
    ctx = np.broadcast_to(log.ctx[rows][:, None].astype(np.float64), (*nodes.shape, log.ctx.shape[1]))
    own = np.concatenate([node, pair], axis=-1)
    by_class = (task[..., :CLASSES, None] * own[..., None, :]).reshape(size)
    return np.concatenate([np.ones((*nodes.shape, 1)), own, task, ctx, by_class], axis=-1)


def _shifted(estimate: Estimate, by: float) -> Estimate:
    return Estimate(by, estimate.low + by - estimate.value, estimate.high + by - estimate.value)
