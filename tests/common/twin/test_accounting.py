# SPDX-License-Identifier: Apache-2.0
"""Credit: leave-one-out is a real removal, integrals are Riemann sums, decisions close when they should."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from shoal_common.cluster import P_DURATION, U_PODS, U_UP, fits
from shoal_common.twin import engine
from shoal_common.twin.accounting import PENDING_LOOKED_AT, PENDING_WEIGHT, advance_cluster
from shoal_common.twin.batch import Perturbation, RewardHorizon, TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.placement import changed, enqueue, place, take_off
from shoal_common.twin.scenarios import Scenario
from shoal_common.twin.scoring import KUBE_136, choose
from shoal_common.twin.state import (
    D_CHARGE,
    D_DECISION,
    D_END,
    D_LOO,
    D_NODE,
    D_STATUS,
    E_CLOSED,
    E_LOO,
    E_NODE,
    E_OWN,
    E_POD,
    E_TIME,
    FINISHED,
    J_TERM,
    NO_ROOM,
    RUNNING,
    V_BACKLOG,
    V_CLOCK,
    V_DECISIONS,
    V_END,
    V_FAULT,
    V_HORIZON,
    V_NEXT_POD,
    V_NODES,
    V_PENDING,
    V_POD,
    V_RATE,
    V_REFERENCE,
    V_RETRY,
    V_TAU,
    V_TOTAL,
    State,
)

W = np.array([0.25, 0.4, 0.25, 0.1])


def copied(state: State) -> State:
    return State(*(array.copy() for array in state))


def tracked_pods(s: State) -> list[int]:
    return [int(p) for p in np.flatnonzero(s.pods[0, :, D_DECISION] >= 0)]


def node_sum(s: State) -> npt.NDArray[np.float64]:
    return np.asarray(s.rates[0, :, J_TERM : J_TERM + 4].sum(0))


@pytest.fixture
def running(busy: Scenario) -> VectorEnv:
    env = VectorEnv([busy], [11])
    env.run({"kube@1.36": 1.0}, 100)
    return env


def test_the_sum_over_nodes_is_the_clusters_rate(running: VectorEnv) -> None:
    row = running.state.env[0]
    assert row[V_BACKLOG] == -min(1.0, PENDING_WEIGHT * row[V_PENDING] / row[V_REFERENCE])
    total = node_sum(running.state)
    total[3] += row[V_BACKLOG]
    assert np.allclose(total, row[V_RATE : V_RATE + 4], atol=1e-12)


def removal(s: State, p: int) -> npt.NDArray[np.float64]:
    """What the sum over nodes loses when running pod p is really taken off a copy."""
    without, n = copied(s), int(s.pods[0, p, D_NODE])
    take_off(without, 0, n, list(s.slots[0, n, : int(s.use[0, n, U_PODS])]).index(p))
    changed(without, 0, n)
    return node_sum(s) - node_sum(without)


def test_leave_one_out_is_a_real_removal(running: VectorEnv) -> None:
    s = running.state
    pods = tracked_pods(s)
    assert len(pods) > 10
    for p in pods:
        assert np.allclose(s.pods[0, p, D_LOO : D_LOO + 4], removal(s, p), rtol=0, atol=1e-13)


def test_pending_pods_are_charged_to_those_who_keep_them_out(running: VectorEnv) -> None:
    s = running.state
    charged = 0
    for _ in range(100):
        pending = min(PENDING_LOOKED_AT, int(s.env[0, V_PENDING]))
        for p in tracked_pods(s):
            without = copied(s)
            n = int(s.pods[0, p, D_NODE])
            take_off(without, 0, n, list(s.slots[0, n, : int(s.use[0, n, U_PODS])]).index(p))
            let_in = sum(
                fits(s.node[0, n], without.use[0, n], without.gpu[0, n], s.queue[0, q])
                and not fits(s.node[0, n], s.use[0, n], s.gpu[0, n], s.queue[0, q])
                for q in range(pending)
            )
            charge = -PENDING_WEIGHT * let_in / s.env[0, V_REFERENCE]
            assert s.pods[0, p, D_CHARGE] == pytest.approx(charge, abs=1e-15)
            charged += let_in
        running.run({"random": 1.0}, 1)
    assert charged > 0


def test_a_perturbed_model_credits_by_its_own_beliefs(busy: Scenario) -> None:
    env = VectorEnv([busy], [11], config=TwinConfig(perturbation=Perturbation(0.3, 2)))
    env.run({"kube@1.36": 1.0}, 60)
    s = env.state
    physics = np.stack([s.physics[:, 1], s.physics[:, 1]], axis=1)
    imagined = copied(s)._replace(node=s.believed.copy(), physics=physics)
    for n in range(env.nodes):
        changed(imagined, 0, n)
    for p in tracked_pods(s):
        assert np.allclose(s.pods[0, p, D_LOO : D_LOO + 4], removal(imagined, p), rtol=0, atol=1e-13)


def run_by_hand(s: State, span: Callable[[State, float, float], None]) -> None:
    """`engine.advance` and its decisions in Python, telling `span` of each time of constant rates."""
    env = s.env[0]

    def decide(p: int) -> None:
        place(s, 0, p, choose(s, 0, p, KUBE_136, W))

    decide(int(env[V_POD]))
    while env[V_CLOCK] < env[V_END]:
        if env[V_RETRY] != NO_ROOM and engine.next_pending(s, 0):
            decide(int(env[V_POD]))
            continue
        at, kind, n = engine.next_event(s, 0)
        at = max(at, env[V_CLOCK])
        span(s, env[V_CLOCK], at)
        engine.settle(s, 0, at)
        advance_cluster(env, at)
        env[V_CLOCK] = at
        if kind == engine.ARRIVAL:
            p = int(env[V_NEXT_POD])
            env[V_NEXT_POD] += 1
            if engine.fits_anywhere(s, 0, s.pods[0, p]):
                decide(p)
            else:
                enqueue(s, 0, p, engine.NEVER)
        elif kind == engine.NODE_DUE:
            (engine.finish if s.use[0, n, U_UP] == 1 else engine.recover_node)(s, 0, n)
        elif kind == engine.FAULT:
            env[V_FAULT] += 1
            row = s.faults[0, int(env[V_FAULT]) - 1]
            engine.fail_node(s, 0, int(row[1]), row[2])
        elif kind == engine.TICK:
            engine.tick(s, 0)
    for n in range(int(env[V_NODES])):
        engine.accumulate(s, 0, n, env[V_CLOCK])


def test_integrals_are_riemann_sums(calm: Scenario) -> None:
    env = VectorEnv([calm], [5], config=TwinConfig(horizon=RewardHorizon(240.0, 120.0)))
    kernel_run = VectorEnv([calm], [5], config=TwinConfig(horizon=RewardHorizon(240.0, 120.0)))
    s = env.state
    total, loo, own = np.zeros(4), np.zeros((len(s.decisions[0]), 4)), np.zeros((len(s.decisions[0]), 4))
    tau, horizon = s.env[0, V_TAU], s.env[0, V_HORIZON]

    def span(s: State, t0: float, t1: float) -> None:
        total[:] += s.env[0, V_RATE : V_RATE + 4] * (t1 - t0)
        for p in tracked_pods(s):
            pod, row = s.pods[0, p], s.decisions[0, int(s.pods[0, p, D_DECISION])]
            stop = min(t1, row[E_TIME] + horizon)
            if stop <= t0:
                continue
            edges = np.linspace(t0, stop, 65)
            middle = (edges[1:] + edges[:-1]) / 2
            weight = np.exp(-(middle - row[E_TIME]) / tau).sum() * (stop - t0) / 64
            d = int(pod[D_DECISION])
            loo[d] += weight * pod[D_LOO : D_LOO + 4]
            loo[d, 3] += weight * pod[D_CHARGE]
            own[d] += weight * (s.rates[0, int(row[E_NODE]), J_TERM : J_TERM + 4] - row[12:16])

    run_by_hand(s, span)
    kernel_run.run({"kube@1.36": 1.0})
    s.env[0, V_POD] = -1
    assert np.array_equal(s.env, kernel_run.state.env)
    assert np.array_equal(s.decisions, kernel_run.state.decisions)
    count = int(s.env[0, V_DECISIONS])
    rows = s.decisions[0, :count]
    assert np.allclose(s.env[0, V_TOTAL : V_TOTAL + 4], total, rtol=1e-9)
    assert np.allclose(rows[:, E_LOO : E_LOO + 4], loo[:count], rtol=1e-4, atol=1e-6)
    assert np.allclose(rows[:, E_OWN : E_OWN + 4], own[:count], rtol=1e-4, atol=1e-6)


def test_a_decision_closes_at_its_pods_end_or_the_horizon(calm: Scenario) -> None:
    env = VectorEnv([calm], [6], config=TwinConfig(horizon=RewardHorizon(300.0, 200.0)))
    while not env.done.all():
        env.run({"kube@1.36": 1.0}, 1)
        s, now = env.state, env.clock[0]
        for row in s.decisions[0, : int(s.env[0, V_DECISIONS])]:
            pod = s.pods[0, int(row[E_POD])]
            ended = pod[D_STATUS] == FINISHED and pod[D_END] <= now
            assert row[E_CLOSED] == float(ended or row[E_TIME] + 300.0 <= now)
    reward, closed = env.rewards()
    assert np.isfinite(reward).all()
    assert closed[0, : env.decision[0]].mean() > 0.8
    assert not closed[0, env.decision[0] :].any()


def test_the_measurement_form_by_hand(calm: Scenario) -> None:
    """One pod alone on an empty node: its node's rate from then on is what it is credited with."""
    env = VectorEnv([calm], [6], config=TwinConfig(horizon=RewardHorizon(50.0, 100.0)))
    s = env.state
    s.env[0, V_NEXT_POD] = 1e9  # nothing else arrives
    p = int(s.env[0, V_POD])
    s.pods[0, p, P_DURATION] = 1000.0
    env.act(np.array([2]))
    assert s.pods[0, p, D_STATUS] in (RUNNING, FINISHED)
    row = s.decisions[0, 0]
    stay = min(50.0, s.pods[0, p, D_END] - row[E_TIME])
    weight = 100.0 * (1 - math.exp(-stay / 100.0))
    other = VectorEnv([calm], [6])
    place(other.state, 0, p, 2)
    rate = other.state.rates[0, 2, J_TERM : J_TERM + 4]
    assert (rate[[0, 2, 3]] < 0).all()
    assert np.allclose(row[E_OWN : E_OWN + 4], weight * rate, rtol=1e-12)
    assert np.allclose(row[E_LOO : E_LOO + 4], weight * rate, rtol=1e-12)  # nobody else: the same
    scale = 4.0 * 5 / (100.0 * (1 - math.exp(-0.5)))
    expected = np.clip(weight * rate * scale, -6, 6)
    assert np.allclose(env.rewards("measurement")[0][0, 0], expected, rtol=1e-6)


def test_the_episode_ends_before_a_decision_goes_uncredited(busy: Scenario) -> None:
    env = VectorEnv([busy], [1])
    room = len(env.state.decisions[0])
    env.state.env[0, V_DECISIONS] = room - 3
    env.run({"kube@1.36": 1.0})
    assert env.decision[0] == room
    assert env.done[0]
    assert env.clock[0] < busy.seconds
