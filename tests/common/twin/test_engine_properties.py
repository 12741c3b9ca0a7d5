# SPDX-License-Identifier: Apache-2.0
"""Whatever is done to a twin: nothing overcommitted, nothing lost, time never runs back, free is exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.cluster import (
    MAX_GPUS,
    MAX_ZONES,
    N_CPU,
    N_GPUS,
    N_MEMORY,
    N_PODS,
    P_MEMORY,
    U_CPU,
    U_GPU,
    U_MEMORY,
    U_PODS,
    U_UP,
    USE_COLUMNS,
)
from shoal_common.twin.batch import TwinConfig
from shoal_common.twin.engine import free_from_scratch
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import Scenario
from shoal_common.twin.state import (
    D_NODE,
    D_STATUS,
    FINISHED,
    J_TERM,
    KILLED,
    PENDING,
    Q_POD,
    RUNNING,
    T_ARRIVAL,
    T_LIMIT_RATIO,
    T_MEMORY_ASKED,
    V_BACKLOG,
    V_CLOCK,
    V_EVICTIONS,
    V_NEXT_POD,
    V_OOM,
    V_PENDING,
    V_POD,
    V_PODS,
    V_RATE,
    V_TOTAL,
    WAITING,
)


def check_free(env: VectorEnv, b: int) -> None:
    s, n = env.state, env.nodes
    use, gpu = np.zeros((n, USE_COLUMNS)), np.zeros((n, MAX_GPUS))
    zone = np.zeros((n, MAX_ZONES, 2))
    free_from_scratch(s, b, use, gpu, zone)
    for column in (U_CPU, U_MEMORY, U_GPU, U_PODS):
        assert np.array_equal(s.use[b, :, column], use[:, column])
    assert np.array_equal(s.gpu[b], gpu)
    assert np.array_equal(s.zone[b], zone)


def check_allocated(env: VectorEnv, b: int) -> None:
    s = env.state
    node, use = s.node[b], s.use[b]
    assert (use[:, U_CPU] <= node[:, N_CPU]).all()
    assert (use[:, U_MEMORY] <= node[:, N_MEMORY]).all()
    assert (use[:, U_GPU] <= 1000 * node[:, N_GPUS]).all()
    assert (use[:, U_PODS] <= node[:, N_PODS]).all()
    assert (use >= 0).all()
    assert (s.gpu[b] >= 0).all()
    assert (s.zone[b] >= 0).all()
    assert (use[use[:, U_UP] == 0, U_PODS] == 0).all()


def check_pods(env: VectorEnv, b: int) -> None:
    row, pods = env.state.env[b], env.state.pods[b]
    status, arrived = pods[:, D_STATUS], int(row[V_NEXT_POD])
    assert (pods[:arrived, T_ARRIVAL] <= row[V_CLOCK]).all()
    assert (status[arrived:] == WAITING).all()
    queue = env.state.queue[b, : int(row[V_PENDING]), Q_POD].astype(int)
    assert len(set(queue)) == len(queue)
    deciding = int(row[V_POD])
    for p in range(arrived):
        if p == deciding:
            continue
        assert status[p] in (PENDING, RUNNING, FINISHED, KILLED)
        assert (status[p] == PENDING) == (p in queue)
        assert (status[p] == RUNNING) == (pods[p, D_NODE] >= 0)
    running = {
        int(p) for n in range(env.nodes) for p in env.state.slots[b, n, : int(env.state.use[b, n, U_PODS])]
    }
    assert running == set(np.flatnonzero(status == RUNNING))


def check_rate(env: VectorEnv, b: int) -> None:
    row = env.state.env[b]
    total = env.state.rates[b, :, J_TERM : J_TERM + 4].sum(0)
    total[3] += row[V_BACKLOG]
    assert np.allclose(row[V_RATE : V_RATE + 4], total, rtol=0, atol=1e-9)
    assert (total <= 1e-12).all()
    assert (total[:3] >= -1 - 1e-9).all()


@settings(deadline=None, derandomize=True, max_examples=12)
@given(seed=st.integers(0, 10_000), wild=st.booleans(), track=st.booleans())
def test_any_sequence_keeps_the_invariants(busy: Scenario, seed: int, wild: bool, track: bool) -> None:
    rng = np.random.default_rng(seed)
    env = VectorEnv([busy, busy], [seed, seed + 1], config=TwinConfig(track=track))
    clock = env.clock.copy()
    while not env.done.all():
        action = rng.integers(-2, env.nodes + 2, 2)  # abstains, infeasible and out of range among them
        quotas = rng.uniform(0.3, 1.0, (2, 2)).astype(np.float32)
        if wild:
            quotas = rng.choice(np.array([np.nan, 0, -1, 0.5, 1, 7, np.inf], np.float32), (2, 2))
        _, reward, _, _ = env.step(action, quotas)
        assert np.isfinite(reward).all()
        assert (env.clock >= clock).all()
        clock = env.clock.copy()
        if rng.random() < 0.1:
            for b in range(2):
                check_free(env, b)
                check_allocated(env, b)
                check_pods(env, b)
                check_rate(env, b)
    for b in range(2):
        check_free(env, b)
        check_pods(env, b)
        check_rate(env, b)
        arrivals = env.state.pods[b, : int(env.state.env[b, V_PODS]), T_ARRIVAL]
        assert env.outcome(b).pods == np.count_nonzero(arrivals <= busy.seconds)
    assert (env.clock == busy.seconds).all()
    assert np.isfinite(env.state.env[:, V_TOTAL : V_TOTAL + 4]).all()


def test_the_sequences_see_evictions_and_kills(busy: Scenario) -> None:
    env = VectorEnv([busy] * 4, [1, 2, 3, 4])
    rng = np.random.default_rng(0)
    while not env.done.all():
        env.act(rng.integers(-1, env.nodes, 4), np.full((4, 2), 0.5, np.float32))
    assert (env.state.env[:, V_EVICTIONS] > 0).all()
    assert (env.state.env[:, V_OOM] > 0).all()


def test_an_evicted_pod_does_not_come_back_at_once_for_ever(calm: Scenario) -> None:
    """A node that is short of memory evicts; the same action over and over must still move time."""
    env = VectorEnv([calm], [3], config=TwinConfig(track=False))
    env.state.node[0, :, N_MEMORY] /= 2.2  # requests no longer cover what pods hold
    env.state.pods[0, :, P_MEMORY] /= 4
    env.state.pods[0, :, T_MEMORY_ASKED] /= 4
    env.state.pods[0, :, T_LIMIT_RATIO] = 100.0
    for _ in range(20_000):
        if env.done.all():
            break
        env.act(np.array([0]))
    assert env.done.all()
    assert env.state.env[0, V_EVICTIONS] > 0
