# SPDX-License-Identifier: Apache-2.0
"""Logged decisions of a virtual cluster: a twin runs, a policy decides, and each decision gets its reward.

Seeds of training arrivals begin at 1,000,000 and never meet those of validation and of held-out comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from shoal_common.learners.base import Learner
from shoal_common.observation import FC, FN, FP, FT, Observation
from shoal_common.reward import ObjectiveWeights
from shoal_common.transition import Transitions, concatenate
from shoal_common.twin.batch import Perturbation, TwinConfig
from shoal_common.twin.env import RewardForm, VectorEnv
from shoal_common.twin.scenarios import Scenario
from shoal_common.twin.traced import TRAINING_SEED
from shoal_simulations.fleet import Learning

HELD_OUT_SEED, VALIDATION_SEED = 9_000, 8_000
EPISODE_SECONDS = 7_200.0  # of training; long against the reward horizon, so that most decisions close
STREAMS = 8  # episodes that run side by side as one batch
BEHAVIOURS = {
    "default-random": {"kube@1.36": 0.5, "random": 0.5},
    "default": {"kube@1.36": 1.0},
    "random": {"random": 1.0},
}

Actions = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]
Form = RewardForm | Literal["lookahead", "shuffled"]
"""lookahead: what a one-step model expects of the choice, known at once (for pretraining on public twins).
shuffled: leave-one-out rewards dealt out at random (a negative control)."""
Policy = Callable[[VectorEnv, Observation], Actions]
"""Decides a batch: action i64[B], quota f32[B, 2], propensity f32[B]."""


def training_seeds(seed: int, round_number: int) -> Iterator[int]:
    """Arrival seeds of one round of one run, disjoint from those of other rounds and runs."""
    return itertools.count(TRAINING_SEED * (1 + seed) + 1_000 * (round_number % 1_000))


def behaviour(name: str) -> Policy:
    """A mix of compiled scorers; its propensities are not known and said to be 1."""
    mix = BEHAVIOURS[name]

    def decide(env: VectorEnv, _: Observation) -> Actions:
        size = len(env)
        return env.choose(mix), np.ones((size, 2), np.float32), np.ones(size, np.float32)

    return decide


def exploring(learner: Learner, rng: np.random.Generator) -> Policy:
    """The learner's own policy with exploration; where it abstains the twin's default decides."""

    def decide(_: VectorEnv, obs: Observation) -> Actions:
        acted = learner.act(obs, explore=True, rng=rng)
        return acted.action, acted.quota, acted.propensity

    return decide


def collect(
    scenario: Scenario,
    seeds: Iterator[int],
    decisions: int,
    policy: Policy,
    weights: ObjectiveWeights,
    form: Form = "leave-one-out",
    config: TwinConfig | None = None,
) -> Transitions:
    """Log so many decisions of one cluster, in time order within each episode, rewards closed where possible.

    Episodes of the scenario's length run one after the other, `STREAMS` at a time; the last ones are run on
    under kube-scheduler's default until their open decisions close.
    """
    parts = [empty(scenario)]
    left = decisions
    while left > 0:
        streams = min(STREAMS, 1 + left // 1_000)
        env = VectorEnv([scenario] * streams, list(itertools.islice(seeds, streams)), weights, config)
        parts.append(_episodes(env, left, policy, form))
        left -= len(parts[-1])
    log = concatenate(parts)
    log.unit = np.arange(len(log), dtype=np.int64)
    if form == "shuffled":
        rows = log.eligible
        log.reward[rows] = log.reward[np.random.default_rng(len(log)).permutation(rows)]
    return log


Step = tuple[Observation, Actions, npt.NDArray[np.float32]]
_NONE = np.zeros((STREAMS, 4), np.float32)


def _expected(env: VectorEnv, action: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """What the one-step model expects of the chosen nodes, f32[B, 4]."""
    expected: npt.NDArray[np.float32] = env.lookahead()[np.arange(len(action)), np.maximum(action, 0)]
    return expected


def _episodes(env: VectorEnv, limit: int, policy: Policy, form: Form) -> Transitions:
    """Log at most `limit` decisions of one batch of episodes."""
    steps: list[Step] = []
    streams: list[npt.NDArray[np.int64]] = []
    rows: list[npt.NDArray[np.int64]] = []
    taken = 0
    while taken < limit and not env.done.all():
        obs, alive = env.observe(), np.flatnonzero(~env.done)[: limit - taken]
        actions = policy(env, obs)
        streams.append(alive)
        rows.append(env.decision[alive])
        steps.append((obs, actions, _expected(env, actions[0]) if form == "lookahead" else _NONE))
        taken += len(alive)
        env.act(actions[0], actions[1])
    env.run({"kube@1.36": 1.0})
    return _transitions(env, steps, streams, rows, form)


def _transitions(
    env: VectorEnv,
    steps: list[Step],
    streams: list[npt.NDArray[np.int64]],
    rows: list[npt.NDArray[np.int64]],
    form: Form,
) -> Transitions:
    """Join the steps, stream by stream, with the rewards that the twin knows by now."""
    stream, row = np.concatenate(streams), np.concatenate(rows)
    order = np.lexsort((row, stream))
    stream, row = stream[order], row[order]
    reward, closed = env.rewards("measurement" if form == "measurement" else "leave-one-out")

    def joined(part: Callable[..., npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
        pairs = zip(steps, streams, strict=True)
        picked: list[npt.NDArray[Any]] = [part(*step)[alive].astype(kind) for step, alive in pairs]
        return np.asarray(np.concatenate(picked)[order])

    size = len(row)
    following = np.where(np.append(stream[1:] == stream[:-1], [False]), np.arange(1, size + 1), -1)
    action = joined(lambda _, a, *__: a[0], np.int32)
    return Transitions(
        node=joined(lambda o, *_: o.node, np.float16),
        pair=joined(lambda o, *_: o.pair, np.float16),
        task=joined(lambda o, *_: o.task, np.float16),
        ctx=joined(lambda o, *_: o.ctx, np.float16),
        mask=joined(lambda o, *_: o.mask, np.bool_),
        action=action,
        quota=joined(lambda _, a, *__: a[1], np.float32),
        propensity=joined(lambda _, a, *__: a[2], np.float32),
        reward=joined(lambda *s: s[2], np.float32) if form == "lookahead" else reward[stream, row],
        closed=closed[stream, row] & (action >= 0),  # where the policy abstained it has nothing to learn
        next_index=following.astype(np.int64),
        unit=np.arange(size, dtype=np.int64),
    )


def empty(scenario: Scenario) -> Transitions:
    """No decisions of a cluster of this size."""
    nodes = len(scenario.node_rows)
    return Transitions(
        node=np.zeros((0, nodes, FN), np.float16),
        pair=np.zeros((0, nodes, FP), np.float16),
        task=np.zeros((0, FT), np.float16),
        ctx=np.zeros((0, FC), np.float16),
        mask=np.zeros((0, nodes, 1), np.bool_),
        action=np.zeros(0, np.int32),
        quota=np.zeros((0, 2), np.float32),
        propensity=np.zeros(0, np.float32),
        reward=np.zeros((0, 4), np.float32),
        closed=np.zeros(0, np.bool_),
        next_index=np.zeros(0, np.int64),
        unit=np.zeros(0, np.int64),
    )


@final
class TwinSource:
    """The experience of one virtual cluster: a log before round 1, fresh decisions of the policy after it."""

    def __init__(
        self, scenario: Scenario, learner: Learner, config: Learning, weights: ObjectiveWeights, seed: int
    ) -> None:
        self._scenario = replace(scenario, seconds=EPISODE_SECONDS)
        self._learner, self._config = learner, config
        self._weights, self._seed = weights, seed

    def snapshot(self, round_number: int) -> Transitions:
        """What is new in this round: a function of the round, the seed and the learner's parameters."""
        config, first = self._config, round_number == 1
        decisions = config.first_decisions if first else config.decisions_per_round
        if decisions == 0:
            return empty(self._scenario)
        if first:
            policy = behaviour(config.behaviour)
        else:
            policy = exploring(self._learner, self._scenario.generator(5, self._seed, round_number))
        seeds = training_seeds(self._seed, round_number)
        twin = TwinConfig(perturbation=Perturbation(config.counterfactual_error, self._seed))
        return collect(self._scenario, seeds, decisions, policy, self._weights, config.reward, twin)
