# SPDX-License-Identifier: Apache-2.0
"""Which interface to a discrete choice lets TD3 learn: set-TD3, a literal score vector, or Wolpertinger.

A one-step placement problem: N heterogeneous nodes with random capacity and load of CPU and memory, one pod,
a feasibility mask (it must fit; a tenth of the nodes is tainted besides). The reward of a node is
1 - peak utilisation - 0.5 skew after placing, peak and skew over the two resources of that node. Scores are
shares of the oracle's gap: 0 is a random feasible node, 1 the best one. No pair features are given: what is
left after placing, a quotient of capacity, load and request, has to be learned.

All three learners have the same encoder, width, learning rate, batches, decisions and updates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal_common.observation import F32, FC, FN, FP, FT, NODE_FEATURES, TASK_FEATURES, Observation
from shoal_common.replay.batch import Batch, Decisions
from shoal_common.reward import ObjectiveWeights

NODES = 16
DECISIONS_PER_UPDATE = 8
WARM_UP = 512
BATCH = 128
TEST_SEED = 9000
REWARD_SCALE = 4.0  # a public constant: rewards of this problem span about a quarter
THRESHOLD = 0.95
NOTE = (
    "One-step placement on 16 random nodes: 0 is a random feasible node, 1 the best one. All learners have "
    "the same encoder, width, initialisation, batches and decisions. Gamma is 0: targets are idle in all."
)
ARMS = ("td3", "literal_td3", "wolpertinger")

_NODE = {feature.name: column for column, feature in enumerate(NODE_FEATURES)}
_TASK = {feature.name: column for column, feature in enumerate(TASK_FEATURES)}


@dataclass(frozen=True, slots=True)
class Problem:
    """B placement problems: what is seen, and what each node would earn."""

    obs: Observation
    reward: F32  # [B, N]


def draw(rng: np.random.Generator, size: int, nodes: int = NODES) -> Problem:
    """Draw `size` problems of `nodes` nodes, each with at least one feasible node."""
    drawn = size + size // 16 + 16  # where nothing is feasible there is no choice: such draws are left out
    cores = rng.uniform(8, 64, (drawn, nodes))
    memory_per_core = rng.uniform(2, 8, (drawn, nodes))  # GiB
    load = rng.uniform(0.05, 0.9, (2, drawn, nodes))  # of CPU and of memory
    request = np.stack([rng.uniform(0.5, 8, (drawn, 1)), rng.uniform(1, 32, (drawn, 1))])  # cores, GiB
    after = load + request / np.stack([cores, cores * memory_per_core])  # [2, B, N]
    mask = (after <= 1.0).all(0) & (rng.random((drawn, nodes)) >= 0.1)
    reward = (1.0 - after.max(0) - 0.5 * np.abs(after[0] - after[1])).astype(np.float32)
    some = np.flatnonzero(mask.any(-1))[:size]
    obs = _observe(cores[some], memory_per_core[some], load[:, some], request[:, some], mask[some])
    return Problem(obs, reward[some])


def _observe(
    cores: npt.NDArray[np.float64],
    memory_per_core: npt.NDArray[np.float64],
    load: npt.NDArray[np.float64],
    request: npt.NDArray[np.float64],
    mask: npt.NDArray[np.bool_],
) -> Observation:
    """Fill the columns that this problem has, in the units of the feature tables."""
    size, nodes = cores.shape
    node, task = np.zeros((size, nodes, FN), np.float32), np.zeros((size, FT), np.float32)
    node[..., _NODE["cpu_free"]], node[..., _NODE["memory_free"]] = 1 - load[0], 1 - load[1]
    node[..., _NODE["cores"]], node[..., _NODE["memory_per_core"]] = cores / 64, memory_per_core / 16
    task[:, _TASK["cpu_request"]], task[:, _TASK["memory_request"]] = (
        request[0, :, 0] / 16,
        request[1, :, 0] / 64,
    )
    return Observation(
        node=node,
        pair=np.zeros((size, nodes, FP), np.float32),
        task=task,
        ctx=np.zeros((size, FC), np.float32),
        w=np.tile(ObjectiveWeights().array(), (size, 1)),
        mask=mask[..., None],
        plugin=np.zeros((size, nodes, 0), np.float32),
    )


def decisions_of(obs: Observation, rows: npt.NDArray[np.int64] | slice) -> Decisions:
    """Pick rows of an observation, as a learner's batch holds them."""
    return Decisions(
        node=obs.node[rows],
        pair=obs.pair[rows],
        task=obs.task[rows],
        ctx=obs.ctx[rows],
        w=obs.w[rows],
        mask=obs.mask[rows],
    )


def uniform_choice(mask: npt.NDArray[np.bool_], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Choose any feasible node: mask [B, N, 1] -> i64[B]."""
    chosen: npt.NDArray[np.int64] = np.where(mask[..., 0], rng.random(mask.shape[:2]), -1.0).argmax(-1)
    return chosen


def gap_share(problem: Problem, action: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Share of the oracle's gap over a random feasible node, and share of exactly best choices."""
    mask = problem.obs.mask[..., 0]
    random = np.where(mask, problem.reward, 0.0).sum(-1) / mask.sum(-1)
    oracle = np.where(mask, problem.reward, -np.inf).max(-1)
    got = problem.reward[np.arange(len(action)), action]
    return float((got - random).mean() / (oracle - random).mean()), float((got == oracle).mean())


def train(learner: Any, updates: int, seed: int, at: Callable[[int], None] | None = None) -> None:
    """Let a learner decide a stream of problems and update once per DECISIONS_PER_UPDATE of them.

    `at(n)` is called after each update n. Every learner of a seed sees the same stream.
    """
    rng = np.random.default_rng([seed, 1])
    stream = draw(np.random.default_rng([seed, 0]), WARM_UP + DECISIONS_PER_UPDATE * updates)
    action, scores = uniform_choice(stream.obs.mask, rng), np.zeros(stream.reward.shape, np.float32)
    scores[:WARM_UP] = rng.uniform(-1, 1, (WARM_UP, NODES))
    action[:WARM_UP] = np.where(stream.obs.mask[:WARM_UP, :, 0], scores[:WARM_UP], -2.0).argmax(-1)
    for update in range(updates):
        done = WARM_UP + DECISIONS_PER_UPDATE * update
        new = slice(done, done + DECISIONS_PER_UPDATE)
        acted = learner.act(decisions_of(stream.obs, new), explore=True, rng=rng)
        action[new] = acted.action
        if acted.scores is not None:
            scores[new] = acted.scores
        rows = rng.integers(0, new.stop, BATCH)
        learner.update(
            Batch(
                obs_t=decisions_of(stream.obs, rows),
                action=action[rows],
                quota=np.ones((BATCH, 2), np.float32),
                reward=REWARD_SCALE * stream.reward[rows, action[rows]],
                discount=np.zeros(BATCH, np.float32),
                scores=scores[rows],
            )
        )
        if at is not None:
            at(update + 1)


def learning_curve(name: str, updates: int, seed: int, test: Problem) -> dict[int, tuple[float, float]]:
    """Train one learner; gap share and exact-best share at a quarter of the updates and at the end."""
    from shoal_common.learners import learner_class
    from shoal_common.learners.td3 import TD3Config

    learner = learner_class(name)(TD3Config(gamma=0.0), seed)
    points: dict[int, tuple[float, float]] = {}

    def measure(update: int) -> None:
        if update in (updates // 4, updates):
            acted = learner.act(test.obs, explore=False, rng=np.random.default_rng(0))
            points[update] = gap_share(test, acted.action)

    train(learner, updates, seed, measure)
    return points


def run(seeds: int = 5, updates: int = 2000, quick: bool = False) -> dict[str, Any]:
    """Run the experiment: claims, controls and metrics in the form of a results page.

    `quick` is 2 seeds of a tenth of the updates, with a bar of half the gap instead of THRESHOLD.
    """
    import torch

    torch.set_num_threads(1)
    if quick:
        seeds, updates = 2, updates // 10
    bar = 0.5 if quick else THRESHOLD
    test = draw(np.random.default_rng(TEST_SEED), 4000)
    curves = {name: [learning_curve(name, updates, seed, test) for seed in range(seeds)] for name in ARMS}
    last = {name: np.array([curve[updates][0] for curve in curves[name]]) for name in ARMS}
    lead = last["td3"] - last["literal_td3"]
    random = gap_share(test, uniform_choice(test.obs.mask, np.random.default_rng(0)))[0]
    return {
        "name": "action_interface",
        "seeds": seeds,
        "claims": [
            claim(f"set-TD3: share of the oracle's gap after {updates} updates", last["td3"], bar),
            claim("set-TD3 minus literal score-vector TD3, same seeds", lead, 0.0),
        ],
        "controls": [claim("a random feasible node earns none of the gap", np.full(seeds, random), None)],
        "metrics": {"By learner and seed": _rows(curves)},
        "note": NOTE,
    }


def _rows(curves: dict[str, list[dict[int, tuple[float, float]]]]) -> list[dict[str, Any]]:
    """One row per learner and seed."""
    rows: list[dict[str, Any]] = []
    for name, of_seeds in curves.items():
        for seed, curve in enumerate(of_seeds):
            row: dict[str, Any] = {"learner": name, "seed": seed}
            for at, (share, best) in curve.items():
                row |= {f"gap share at {at}": round(share, 4), f"exactly best at {at}": round(best, 4)}
            rows.append(row)
    return rows


def claim(text: str, values: npt.NDArray[np.float64], above: float | None) -> dict[str, Any]:
    """State a mean over seeds with its t interval; it holds if the lower bound is above, or is about 0."""
    from scipy import stats

    mean, count = float(values.mean()), len(values)
    half = float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / np.sqrt(count))
    holds = abs(mean) < 0.02 if above is None else mean - half > above
    return {"claim": text, "estimate": mean, "ci95": [mean - half, mean + half], "holds": bool(holds)}
