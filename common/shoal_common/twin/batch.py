# SPDX-License-Identifier: Apache-2.0
"""Build the state of a batch of twins from scenarios and seeds; every cluster is as it would be alone."""

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
)
from shoal_common.observation import FN
from shoal_common.twin.engine import TICK_SECONDS
from shoal_common.twin.physics import Y_INTERFERENCE, Y_IO_SHARE, default_physics
from shoal_common.twin.scenarios import Scenario, make_faults, make_pods
from shoal_common.twin.state import (
    DECISION_COLUMNS,
    ENV_COLUMNS,
    J_FINISHER,
    NO_ROOM,
    QUEUE_COLUMNS,
    RATE_COLUMNS,
    SLOTS,
    V_BATTERY_WH,
    V_CAPACITY,
    V_CHARGE,
    V_CPU,
    V_END,
    V_HORIZON,
    V_NODES,
    V_PERIOD,
    V_POD,
    V_PODS,
    V_PRICE,
    V_PRICE_AMPLITUDE,
    V_REFERENCE,
    V_RETRY,
    V_ROOM,
    V_TAU,
    V_TICK,
    V_TRACK,
    V_WATT_RANGE,
    WORK,
    State,
)
from shoal_common.twin.step import start

CORES_PER_REFERENCE_POD = 2.5


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


def build_state(
    scenarios: list[Scenario], seeds: list[int], config: TwinConfig, arrivals: list[F64] | None = None
) -> State:
    """Empty clusters at time 0 with the pods and faults that the seeds give; padded to the largest.

    `arrivals`, f64[M, TWIN_POD_COLUMNS] in order of arrival for each cluster, take the place of the pods.
    """
    nodes = [s.node_rows for s in scenarios]
    pods = arrivals or [make_pods(s, seed) for s, seed in zip(scenarios, seeds, strict=True)]
    faults = [make_faults(s, seed) for s, seed in zip(scenarios, seeds, strict=True)]
    truth = default_physics()
    keys = [int(s.generator(3).integers(2**31)) for s in scenarios]
    models = [config.perturbation.apply(n, truth, key) for n, key in zip(nodes, keys, strict=True)]
    batch, size = len(scenarios), max(len(n) for n in nodes)
    most = max(1, *(len(p) for p in pods))
    use, gpu, zone = _empty_nodes(nodes, size)
    rates = np.zeros((batch, size, RATE_COLUMNS))
    rates[:, :, J_FINISHER] = -1
    env = np.stack([_env_row(s, n, len(p), config) for s, n, p in zip(scenarios, nodes, pods, strict=True)])
    state = State(
        node=_pad(nodes, size),
        believed=_pad([node for node, _ in models], size),
        use=use,
        gpu=gpu,
        zone=zone,
        rates=rates,
        due=np.full((batch, size), np.inf),
        slots=np.zeros((batch, size, SLOTS), dtype=np.int32),
        pods=_pad(pods, most),
        queue=np.zeros((batch, most, QUEUE_COLUMNS)),
        decisions=np.zeros((batch, _room(most) if config.track else 1, DECISION_COLUMNS)),
        faults=_pad(faults, max(1, *(len(f) for f in faults)), np.inf),
        env=env,
        physics=np.stack([np.stack([truth, physics]) for _, physics in models]),
        random=_generators(scenarios, seeds),
        features=np.zeros((batch, size, FN), dtype=np.float32),
        work=np.zeros((batch, *WORK)),
        found=np.zeros((batch, size), dtype=np.int32),
        score=np.zeros((batch, size)),
    )
    start(state)
    return state


def _room(pods: int) -> int:
    """Decisions that are credited: twice the pods, for those that are evicted and placed again."""
    return 2 * pods + 64


def _empty_nodes(nodes: list[F64], size: int) -> tuple[F64, F64, F64]:
    """Use, free milli-GPU and free NUMA zones of nodes on which nothing runs."""
    use = np.zeros((len(nodes), size, USE_COLUMNS))
    gpu, zone = np.zeros((len(nodes), size, MAX_GPUS)), np.zeros((len(nodes), size, MAX_ZONES, 2))
    for b, rows in enumerate(nodes):
        use[b, : len(rows), U_UP] = 1
        gpu[b, : len(rows)] = 1000.0 * (np.arange(MAX_GPUS) < rows[:, N_GPUS, None])
        total, zones = rows[:, [N_CPU, N_MEMORY]], rows[:, N_ZONES, None]
        part = np.floor(total / zones)  # as `zone_share`: whole parts, zone 0 has the rest
        zone[b, : len(rows)] = part[:, None] * (np.arange(MAX_ZONES)[:, None] < zones[..., None])
        zone[b, : len(rows), 0] = total - part * (zones - 1)
    return use, gpu, zone


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
    row[V_POD], row[V_RETRY], row[V_TICK] = -1, NO_ROOM, TICK_SECONDS
    row[V_PRICE], row[V_PRICE_AMPLITUDE] = 1.0, scenario.price_amplitude
    row[V_CHARGE], row[V_BATTERY_WH] = 1.0, scenario.battery_wh
    row[V_PERIOD] = scenario.workload.period_seconds
    row[V_CAPACITY] = (nodes[:, N_CPU] * nodes[:, N_SPEED]).sum()
    peak = nodes[:, N_MAX_WATTS] + nodes[:, N_GPU_WATTS] * nodes[:, N_GPUS]
    row[V_WATT_RANGE] = (peak - nodes[:, N_IDLE_WATTS] * nodes[:, N_DEEP_IDLE]).sum()
    row[V_CPU] = nodes[:, N_CPU].sum()
    row[V_REFERENCE] = row[V_CPU] / 1000 / CORES_PER_REFERENCE_POD
    row[V_TRACK], row[V_HORIZON], row[V_TAU] = config.track, config.horizon.seconds, config.horizon.tau
    row[V_ROOM] = _room(pods)
    return row
