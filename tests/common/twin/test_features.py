# SPDX-License-Identifier: Apache-2.0
"""Observations: every feature within its public bounds and equal to a plain computation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal_common import cluster as c
from shoal_common.observation import (
    CONTEXT_FEATURES,
    NODE_FEATURES,
    PAIR_FEATURES,
    TASK_FEATURES,
    Feature,
)
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import Scenario
from shoal_common.twin.state import V_CHARGE, V_CLOCK, V_PENDING, V_PERIOD, V_POD, V_PRICE

GIB = 1024**3


def clipped(table: tuple[Feature, ...], values: dict[str, float]) -> list[float]:
    assert set(values) == {f.name for f in table}
    return [min(max(values[f.name], f.low), f.high) for f in table]


def node_features(k: c.Cluster, n: int) -> list[float]:
    node, use, gpus = k.node[n], k.use[n], int(k.node[n, c.N_GPUS])
    cpu, memory, devices = node[c.N_CPU], node[c.N_MEMORY], k.gpu_free[n, :gpus]
    zones = int(node[c.N_ZONES])
    load = use[c.U_LOAD : c.U_LOAD + 4] / cpu
    return clipped(
        NODE_FEATURES,
        {
            "cpu_free": 1 - use[c.U_CPU] / cpu,
            "memory_free": 1 - use[c.U_MEMORY] / memory,
            "gpu_free": devices.sum() / (1000 * gpus) if gpus else 0.0,
            "gpu_free_whole": np.count_nonzero(devices == 1000) / 8,
            "gpu_free_largest": devices.max(initial=0) / 1000,
            "cpu_load": use[c.U_CPU_WANTED] / cpu,
            "io_load": use[c.U_IO_WANTED] / node[c.N_IO_CAPACITY],
            "load_service": load[0],
            "load_compute": load[1],
            "load_io": load[2],
            "load_gpu": load[3],
            "empty": float(use[c.U_PODS] == 0 and use[c.U_UP] == 1),
            "has_gpu": float(gpus > 0),
            "gpus": gpus / 8,
            "has_dpu": node[c.N_DPU],
            "speed": node[c.N_SPEED] - 1,
            "io_speed": (node[c.N_IO_SPEED] - 1) / 2,
            "cores": cpu / 64_000,
            "memory_per_core": memory / GIB / (cpu / 1000) / 16,
            "idle_power": node[c.N_IDLE_WATTS] / 400,
            "power_per_core": (node[c.N_MAX_WATTS] - node[c.N_IDLE_WATTS]) / (cpu / 1000) / 20,
            "deep_idle": node[c.N_DEEP_IDLE],
            "pods": use[c.U_PODS] / 64,
            "mean_remaining": use[c.U_REMAINING],
            "numa_free": k.zone_free[n, :zones, 0].max() / (cpu / zones),
            "recent_failures": use[c.U_FAILURES] / 4,
        },
    )


def pair_features(k: c.Cluster, n: int, pod: np.ndarray) -> list[float]:
    node, use = k.node[n], k.use[n]
    return clipped(
        PAIR_FEATURES,
        {
            "cpu_after": 1 - (use[c.U_CPU] + pod[c.P_CPU]) / node[c.N_CPU],
            "memory_after": 1 - (use[c.U_MEMORY] + pod[c.P_MEMORY]) / node[c.N_MEMORY],
            "gpu_after": (k.gpu_free[n].sum() - pod[c.P_GPU] * pod[c.P_GPUS]) / 8000,
            "like_load": use[c.U_LOAD + int(pod[c.P_CLASS])] / node[c.N_CPU],
            "numa_fits": float(k.single_numa(pod)[n]),
            "cpu_share": pod[c.P_CPU_USE] / node[c.N_CPU],
        },
    )


def task_features(pod: np.ndarray) -> list[float]:
    kind = ("service", "compute", "io", "gpu")[int(pod[c.P_CLASS])]
    return clipped(
        TASK_FEATURES,
        {f"is_{k}": float(k == kind) for k in ("service", "compute", "io", "gpu")}
        | {
            "cpu_request": pod[c.P_CPU] / 16_000,
            "memory_request": pod[c.P_MEMORY] / (64 * GIB),
            "gpu_request": pod[c.P_GPU] * pod[c.P_GPUS] / 8000,
            "cpu_use": pod[c.P_CPU_USE] / pod[c.P_CPU],
            "io_use": pod[c.P_IO_USE] / 4,
            "sla_slack": pod[c.P_SLA] - 1,
            "log_duration": math.log10(pod[c.P_DURATION]) / 5,
        },
    )


def context_features(k: c.Cluster, env: np.ndarray) -> list[float]:
    phase = 2 * math.pi * env[V_CLOCK] / env[V_PERIOD]
    return clipped(
        CONTEXT_FEATURES,
        {
            "pending": env[V_PENDING] / 32,
            "active_nodes": float(np.mean(k.use[:, c.U_PODS] > 0)),
            "cluster_cpu_free": 1 - k.use[:, c.U_CPU].sum() / k.node[:, c.N_CPU].sum(),
            "cluster_gpu_free": k.gpu_free.sum() / (1000 * k.node[:, c.N_GPUS].sum()),
            "log_nodes": math.log2(len(k)) / 13,
            "energy_price": env[V_PRICE] / 2,
            "battery": env[V_CHARGE],
            "hour_sin": math.sin(phase),
            "hour_cos": math.cos(phase),
        },
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_features_equal_a_plain_computation(busy: Scenario, seed: int) -> None:
    env = VectorEnv([busy], [seed])
    for _ in range(120):
        obs, k = env.observe(), env.cluster(0)
        pod = env.state.pods[0, int(env.state.env[0, V_POD])]
        for n in range(len(k)):
            assert obs.node[0, n] == pytest.approx(node_features(k, n), abs=1e-6)
            assert obs.pair[0, n] == pytest.approx(pair_features(k, n, pod), abs=1e-6)
        assert obs.task[0] == pytest.approx(task_features(pod), abs=1e-6)
        assert obs.ctx[0] == pytest.approx(context_features(k, env.state.env[0]), abs=1e-6)
        env.act(env.choose({"kube@1.36": 0.5, "random": 0.5}))
        if env.done[0]:
            break


def test_features_stay_in_their_bounds_and_padding_is_zero(busy: Scenario, calm: Scenario) -> None:
    env = VectorEnv([busy, calm], [3, 3])
    tables = {"node": NODE_FEATURES, "pair": PAIR_FEATURES, "task": TASK_FEATURES, "ctx": CONTEXT_FEATURES}
    rng = np.random.default_rng(0)
    while not env.done.all():
        obs = env.observe()
        for name, table in tables.items():
            values = getattr(obs, name)
            assert (values >= np.array([f.low for f in table], np.float32)).all()
            assert (values <= np.array([f.high for f in table], np.float32)).all()
        assert not obs.node[1, 5:].any()
        assert not obs.pair[1, 5:].any()
        assert not obs.mask[1, 5:].any()
        env.act(rng.integers(-1, 7, 2), rng.uniform(0.1, 1, (2, 2)).astype(np.float32))
    last = env.observe()
    assert not last.mask.any()
    assert not last.node.any()
