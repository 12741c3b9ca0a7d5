# SPDX-License-Identifier: Apache-2.0
"""Build the state of a batch of twins, and the kernels that step the whole batch in one call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import (
    F64,
    MAX_GPUS,
    MAX_ZONES,
    N_CPU,
    N_DEEP_IDLE,
    N_GPU_WATTS,
    N_GPUS,
    N_IDLE_WATTS,
    N_IO_SPEED,
    N_MAX_WATTS,
    N_MEMORY,
    N_SPEED,
    N_ZONES,
    U_UP,
    USE_COLUMNS,
    Mask,
    feasible_mask,
    fits,
)
from shoal_common.features import encode_context, encode_node, encode_pairs, encode_task
from shoal_common.kernels import kernel
from shoal_common.observation import FN
from shoal_common.twin.engine import SCRATCH, TICK_SECONDS, advance, apply_quota, changed, place
from shoal_common.twin.physics import Y_INTERFERENCE, Y_IO_SHARE, default_physics
from shoal_common.twin.scenarios import Scenario, make_faults, make_pods
from shoal_common.twin.scoring import (
    LOOKAHEAD,
    RANDOM,
    choose,
    lookahead_score,
    lookahead_terms,
    score_node,
    uniform,
)
from shoal_common.twin.state import (
    DECISION_COLUMNS,
    ENV_COLUMNS,
    I32,
    J_FINISH,
    J_FINISHER,
    J_RECOVER,
    RATE_COLUMNS,
    V_BATTERY_WH,
    V_CAPACITY,
    V_CHARGE,
    V_CLOCK,
    V_CPU,
    V_END,
    V_HORIZON,
    V_NODES,
    V_PENDING,
    V_PERIOD,
    V_POD,
    V_PODS,
    V_PRICE,
    V_PRICE_AMPLITUDE,
    V_REFERENCE,
    V_RETRY,
    V_STEP,
    V_TAU,
    V_TICK,
    V_TRACK,
    V_WATT_RANGE,
    State,
)

SLOTS = 112  # kubelet's default of 110 pods a node, and one for lookahead
CORES_PER_REFERENCE_POD = 2.5
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RewardHorizon:
    """How long a decision is credited: seconds until it closes, and the discount's time constant."""

    seconds: float = 300.0
    tau: float = 200.0


@dataclass(frozen=True, slots=True)
class Perturbation:
    """How wrong the counterfactual model is: speeds, power and interference each off by up to `share`."""

    share: float = 0.0
    seed: int = 0

    def apply(self, node: F64, physics: F64, key: int) -> tuple[F64, F64]:
        """Perturbed copies of node rows and physics; the same classes are wrong in the same way."""
        rng = np.random.default_rng([self.seed, key])
        node, physics = node.copy(), physics.copy()
        kinds, index = np.unique(node, axis=0, return_inverse=True)
        for column in (N_SPEED, N_IO_SPEED, N_IDLE_WATTS, N_MAX_WATTS, N_GPU_WATTS, N_DEEP_IDLE):
            factor = 1 + self.share * rng.uniform(-1, 1, len(kinds))
            node[:, column] *= factor[index.reshape(-1)]
        node[:, N_MAX_WATTS] = np.maximum(node[:, N_MAX_WATTS], node[:, N_IDLE_WATTS])
        for begin in (Y_INTERFERENCE, Y_IO_SHARE):
            physics[begin : begin + 4] *= 1 + self.share * rng.uniform(-1, 1, 4)
        return node, physics


@dataclass(frozen=True, slots=True)
class TwinConfig:
    """What a batch of twins needs besides its scenarios."""

    track: bool = True  # whether decisions are credited (slower) or only counted
    horizon: RewardHorizon = field(default_factory=RewardHorizon)
    perturbation: Perturbation = field(default_factory=Perturbation)


def build_state(scenarios: list[Scenario], seeds: list[int], config: TwinConfig) -> State:
    """Empty clusters at time 0 with the pods and faults that the seeds give; padded to the largest."""
    nodes = [s.node_rows for s in scenarios]
    pods = [make_pods(s, seed) for s, seed in zip(scenarios, seeds, strict=True)]
    faults = [make_faults(s, seed) for s, seed in zip(scenarios, seeds, strict=True)]
    physics = np.stack([default_physics(), default_physics()])
    believed = []
    for rows, scenario in zip(nodes, scenarios, strict=True):
        key = int(scenario.generator(3).integers(2**31))
        changed_rows, changed_physics = config.perturbation.apply(rows, physics[0], key)
        believed.append(changed_rows)
        if config.perturbation.share > 0:
            physics[1] = changed_physics
    batch, size = len(scenarios), max(len(n) for n in nodes)
    most = max(1, max(len(p) for p in pods))
    gpu, zone = np.zeros((batch, size, MAX_GPUS)), np.zeros((batch, size, MAX_ZONES, 2))
    use = np.zeros((batch, size, USE_COLUMNS))
    rates = np.zeros((batch, size, RATE_COLUMNS))
    rates[:, :, [J_FINISH, J_RECOVER]], rates[:, :, J_FINISHER] = np.inf, -1
    for b, rows in enumerate(nodes):
        use[b, : len(rows), U_UP] = 1
        gpu[b, : len(rows)] = 1000.0 * (np.arange(MAX_GPUS) < rows[:, N_GPUS, None])
        share = rows[:, [N_CPU, N_MEMORY]] / rows[:, N_ZONES, None]
        zone[b, : len(rows)] = share[:, None] * (np.arange(MAX_ZONES)[:, None] < rows[:, N_ZONES, None, None])
    env = np.stack([
        _env_row(s, rows, len(p), config) for s, rows, p in zip(scenarios, nodes, pods, strict=True)
    ])  # fmt: skip
    decisions = int(1.25 * most) + 16 if config.track else 1
    state = State(
        node=_pad(nodes, size), believed=_pad(believed, size), use=use, gpu=gpu, zone=zone, rates=rates,
        slots=np.zeros((batch, size, SLOTS), dtype=np.int32), pods=_pad(pods, most),
        queue=np.zeros((batch, most), dtype=np.int32),
        decisions=np.zeros((batch, decisions, DECISION_COLUMNS)),
        faults=_pad(faults, max(1, max(len(f) for f in faults)), np.inf),
        env=env, physics=physics, random=_generators(scenarios, seeds),
        features=np.zeros((batch, size, FN), dtype=np.float32),
    )  # fmt: skip
    start(state, np.zeros(SCRATCH))
    return state


def _pad(parts: list[F64], length: int, fill: float = 0.0) -> F64:
    out = np.full((len(parts), length, parts[0].shape[1]), fill)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out


def _generators(scenarios: list[Scenario], seeds: list[int]) -> npt.NDArray[np.uint64]:
    words = [
        s.generator(4, seed).integers(1, 2**63, dtype=np.uint64)
        for s, seed in zip(scenarios, seeds, strict=True)
    ]
    return np.array(words, dtype=np.uint64)


def _env_row(scenario: Scenario, nodes: F64, pods: int, config: TwinConfig) -> F64:
    row = np.zeros(ENV_COLUMNS)
    row[V_END], row[V_PODS], row[V_NODES] = scenario.seconds, pods, len(nodes)
    row[V_POD], row[V_RETRY], row[V_TICK] = -1, -1, TICK_SECONDS
    row[V_PRICE], row[V_PRICE_AMPLITUDE] = 1.0, scenario.price_amplitude
    row[V_CHARGE], row[V_BATTERY_WH], row[V_PERIOD] = (
        1.0,
        scenario.battery_wh,
        scenario.workload.period_seconds,
    )
    row[V_CAPACITY] = (nodes[:, N_CPU] * nodes[:, N_SPEED]).sum()
    peak = nodes[:, N_MAX_WATTS] + nodes[:, N_GPU_WATTS] * nodes[:, N_GPUS]
    row[V_WATT_RANGE] = (peak - nodes[:, N_IDLE_WATTS] * nodes[:, N_DEEP_IDLE]).sum()
    row[V_REFERENCE] = nodes[:, N_CPU].sum() / 1000 / CORES_PER_REFERENCE_POD
    row[V_CPU] = nodes[:, N_CPU].sum()
    row[V_TRACK], row[V_HORIZON], row[V_TAU] = config.track, config.horizon.seconds, config.horizon.tau
    return row


@kernel
def start(s: State, scratch: F64) -> None:
    """Power up every cluster and run it to its first decision."""
    for b in range(len(s.env)):
        for n in range(int(s.env[b, V_NODES])):
            changed(s, b, n, scratch)
        for n in range(int(s.env[b, V_NODES]), s.node.shape[1]):
            encode_node(s.node[b, n], s.use[b, n], s.gpu[b, n], s.zone[b, n], s.features[b, n])
        advance(s, b, scratch)


@kernel
def step_batch(
    s: State, actions: npt.NDArray[np.int64], quotas: F32, w: F32, scorer: int, scratch: F64
) -> None:
    """Place every cluster's current pod and run on to its next decision.

    An action of -1 abstains: the compiled scorer decides. An infeasible action is refused likewise, so no
    policy can overcommit a node.
    """
    weights = scratch[3, 8:12]
    for b in range(len(s.env)):
        p = int(s.env[b, V_POD])
        s.env[b, V_STEP : V_STEP + 4] = 0.0
        if p < 0:
            continue
        n = int(actions[b])
        apply_quota(s.pods[b, p], quotas[b, 0], quotas[b, 1])
        if (
            n < 0
            or n >= int(s.env[b, V_NODES])
            or not fits(s.node[b, n], s.use[b, n], s.gpu[b, n], s.pods[b, p])
        ):
            apply_quota(s.pods[b, p], 1.0, 1.0)
            for j in range(4):
                weights[j] = w[b, j]
            n = choose(s, b, p, scorer, weights, scratch)
        place(s, b, p, n, scratch)
        advance(s, b, scratch)


@kernel
def observe_batch(
    s: State,
    node: F32,
    pair: F32,
    task: F32,
    ctx: F32,
    mask: Mask,
    plugin: F32,
    scorers: I32,
    w: F32,
    scratch: F64,
) -> None:
    """Fill the arrays of an Observation; a finished cluster has an empty mask."""
    weights = scratch[3, 8:12]
    for b in range(len(s.env)):
        p = int(s.env[b, V_POD])
        mask[b] = False
        if p < 0:
            node[b], pair[b], task[b], ctx[b], plugin[b] = 0.0, 0.0, 0.0, 0.0, 0.0
            continue
        pod = s.pods[b, p]
        node[b] = s.features[b]
        encode_pairs(s.node[b], s.use[b], s.gpu[b], s.zone[b], pod, pair[b])
        encode_task(pod, task[b])
        phase = 2.0 * np.pi * s.env[b, V_CLOCK] / s.env[b, V_PERIOD]
        encode_context(
            s.node[b], s.use[b], s.env[b, V_PENDING], s.env[b, V_PRICE], s.env[b, V_CHARGE], phase, ctx[b]
        )
        feasible_mask(s.node[b], s.use[b], s.gpu[b], pod, mask[b, :, 0])
        for j in range(4):
            weights[j] = w[b, j]
        for k in range(len(scorers)):
            fill_plugin(s, b, p, scorers[k], mask[b, :, 0], weights, scratch, plugin[b, :, k])


@kernel
def fill_plugin(
    s: State, b: int, p: int, scorer: int, mask: Mask, w: F64, scratch: F64, out: F32
) -> None:
    """Fill out[N] with a compiled scorer's scores of the feasible nodes."""
    node, use, pod = s.node[b], s.use[b], s.pods[b, p]
    for n in range(len(node)):
        if not mask[n]:
            continue
        if scorer == LOOKAHEAD:
            out[n] = lookahead_score(s, b, p, n, w, scratch)
        elif scorer == RANDOM:
            out[n] = uniform(s.random, b)
        else:
            out[n] = score_node(node[n], use[n], pod, scorer)


@kernel
def run_batch(s: State, scorers: I32, w: F64, shares: F64, limit: int, scratch: F64) -> None:
    """Run every cluster under a mix of compiled scorers (shares sum to 1) for `limit` decisions or to the end."""
    for b in range(len(s.env)):
        for _ in range(limit):
            p = int(s.env[b, V_POD])
            if p < 0:
                break
            scorer = pick(s.random, b, scorers, shares)
            place(s, b, p, choose(s, b, p, scorer, w, scratch), scratch)
            advance(s, b, scratch)


@kernel
def pick(random: npt.NDArray[np.uint64], b: int, scorers: I32, shares: F64) -> int:
    """Draw one of the scorers by its share."""
    if len(scorers) == 1:
        return int(scorers[0])
    u = uniform(random, b)
    for k in range(len(scorers) - 1):
        u -= shares[k]
        if u < 0.0:
            return int(scorers[k])
    return int(scorers[-1])


@kernel
def choose_batch(
    s: State, scorers: I32, w: F64, shares: F64, out: npt.NDArray[np.int64], scratch: F64
) -> None:
    """Fill out[B] with what a mix of compiled scorers picks for each cluster's current pod, -1 without one."""
    for b in range(len(s.env)):
        p = int(s.env[b, V_POD])
        out[b] = -1
        if p >= 0:
            out[b] = choose(s, b, p, pick(s.random, b, scorers, shares), w, scratch)


@kernel
def lookahead_batch(s: State, which: int, scratch: F64, out: F64) -> None:
    """Fill out[B, N, 4] with the lookahead terms of every feasible node (0 elsewhere)."""
    for b in range(len(s.env)):
        out[b] = 0.0
        p = int(s.env[b, V_POD])
        for n in range(int(s.env[b, V_NODES]) if p >= 0 else 0):
            if fits(s.node[b, n], s.use[b, n], s.gpu[b, n], s.pods[b, p]):
                lookahead_terms(s, b, p, n, which, scratch, out[b, n])
