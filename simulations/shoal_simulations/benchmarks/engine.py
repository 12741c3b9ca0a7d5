# SPDX-License-Identifier: Apache-2.0
"""How fast the twin is: placements, steps with observations, a batch against its clusters one by one.

Figures per core divide by CPU time, so that other work on the machine does not count. The batch is compared
by wall time, as it may use a second core. Repetitions of what is compared alternate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal_common.observation import Observation
from shoal_common.twin.batch import TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import NODE_CLASSES, Scenario
from shoal_simulations import openb
from shoal_simulations.benchmarks.openb import PEER_PODS_PER_S
from shoal_simulations.traces.openb import read_nodes, read_pods

DEFAULT = {"kube@1.36": 1.0}
BATCH = 64
WARM_UP = 300  # decisions until a cluster is as full as it stays
FLEET = (("old-cpu", 18), ("new-cpu", 20), ("gpu", 6), ("dpu", 6))


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value beside its peer's, where it has one, and what is required of it."""

    name: str
    value: float | None
    unit: str
    required: float
    peer: float | None = None
    peer_name: str = ""
    why: str = ""
    """Why there is no value."""

    def row(self) -> dict[str, Any]:
        """The figure with its ratio to the peer and whether it holds, for JSON."""
        ratio = self.value / self.peer if self.value is not None and self.peer else None
        holds = None if self.value is None else self.value >= self.required
        return asdict(self) | {"ratio": ratio, "holds": holds}


def cluster(nodes: int) -> Scenario:
    """A cluster of old and new CPU nodes, GPU and DPU nodes in the proportions of FLEET."""
    groups = tuple((NODE_CLASSES[name], count * nodes // 50) for name, count in FLEET)
    return Scenario(f"bench-{nodes}", groups)


def placements(repeats: int) -> float:
    """Placements per CPU second under the default profile's resource scores at 200 nodes, events included."""
    rates = []
    for repeat in range(1 + repeats):
        env = VectorEnv([cluster(200)], [repeat], config=TwinConfig(track=False))
        begin = time.process_time()
        env.run(DEFAULT)
        rates.append(int(env.decision[0]) / (time.process_time() - begin))
    return median(rates[1:])  # the first one compiles


def feasible(obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Any feasible node for each cluster."""
    return np.asarray((rng.random(obs.mask.shape[:2]) * obs.mask[..., 0]).argmax(-1), dtype=np.int64)


def timed_steps(
    envs: Sequence[VectorEnv], steps: int, clock: Callable[[], float], rng: np.random.Generator
) -> float:
    """Seconds for so many steps of every environment; choosing the actions does not count."""
    seconds = 0.0
    seen = [env.observe() for env in envs]
    for _ in range(steps):
        for i, env in enumerate(envs):
            action = feasible(seen[i], rng)
            begin = clock()
            seen[i] = env.step(action)[0]
            seconds += clock() - begin
    return seconds


def warm(batches: int, size: int, track: bool) -> list[VectorEnv]:
    """Environments of `size` clusters of 50 nodes that have filled up."""
    scenario, config = cluster(50), TwinConfig(track=track)
    envs = [
        VectorEnv([scenario] * size, list(range(size * i, size * (i + 1))), config=config)
        for i in range(batches)
    ]
    for env in envs:
        env.run(DEFAULT, WARM_UP)
    return envs


def steps_per_core(track: bool, repeats: int) -> float:
    """VectorEnv steps, observations included, per CPU second at 50 nodes."""
    envs, rng, steps = warm(1, BATCH, track), np.random.default_rng(0), 40
    timed_steps(envs, 2, time.process_time, rng)
    return median(BATCH * steps / timed_steps(envs, steps, time.process_time, rng) for _ in range(repeats))


def batch_against_single(track: bool, repeats: int) -> tuple[float, float]:
    """Steps per second of 64 clusters in one batch, and of the same 64 stepped one by one.

    Of short alternating repetitions the fastest counts, as in `timeit`: what is slower waited for other work.
    """
    together, alone = warm(1, BATCH, track), warm(BATCH, 1, track)
    rng, steps = np.random.default_rng(0), 2
    rates: list[tuple[float, float]] = []
    for _ in range(1 + 20 * repeats):
        pair = [timed_steps(envs, steps, time.perf_counter, rng) for envs in (together, alone)]
        rates.append((BATCH * steps / pair[0], BATCH * steps / pair[1]))
    return max(a for a, _ in rates), max(b for _, b in rates)


def fgd_replay(data: Path, repeats: int) -> float:
    """Pods per second of the openb replay under FGD, in the published order of the default workload."""
    nodes = read_nodes(data / "openb" / "openb_node_list_gpu_node.csv")
    pods = read_pods(data / "openb" / "openb_pod_list_default.csv")
    order = openb.load_order(data / "fgd_expected" / "go_order.npz", "default_42", nodes, pods)
    rates = []
    for _ in range(repeats):
        result = openb.replay(openb.prepare(nodes, pods, order), "fgd")
        rates.append(len(result.node) / result.seconds)
    return median(rates)


def run(quick: bool = False) -> dict[str, Any]:
    """All figures as rows; `quick` (well within 50 s) repeats less."""
    repeats = 5 if quick else 15
    figures = [
        Figure("placements at 200 nodes, default profile", placements(repeats), "1/s/core", 50_000),
        Figure("steps at 50 nodes, uncredited", steps_per_core(False, repeats), "1/s/core", 20_000),
        Figure("steps at 50 nodes, leave-one-out", steps_per_core(True, repeats), "1/s/core", 20_000),
        _batch(False, repeats),
        _batch(True, repeats),
        _replay(1 if quick else 3),
    ]
    rows = [figure.row() for figure in figures]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "quick": quick,
        "figures": rows,
        "holds": all(row["holds"] is not False for row in rows),
    }


def _batch(track: bool, repeats: int) -> Figure:
    batch, single = batch_against_single(track, repeats)
    name = f"64 clusters in one batch, {'leave-one-out' if track else 'uncredited'}"
    return Figure(name, batch, "1/s", 4 * single, single, "the same, one by one")


def _replay(repeats: int) -> Figure:
    data = os.environ.get("SHOAL_DATA")
    value = fgd_replay(Path(data), repeats) if data else None
    why = "" if data else "SHOAL_DATA does not point to the traces"
    peer = "openb simulator (Go, 2 vCPU)"
    return Figure("openb replay, FGD", value, "pods/s", 1_000, PEER_PODS_PER_S, peer, why)
