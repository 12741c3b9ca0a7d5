# SPDX-License-Identifier: Apache-2.0
"""The live estimator, fed with what could be measured of a twin, against the twin's own measurement reward.

The estimator gets the times of starts and ends, what apps are known to use, and the nodes' CPU use, I/O and
watts every 15 s. It does not get what each pod really uses, nor any slowdown. It shares the twin's contention
model, so agreement says that it measures the right thing, not that the model is a real cluster's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from shoal_client.collect.measured import Measured
from shoal_client.experience.reward import NodeRates
from shoal_common.cluster import N_GPU_WATTS, N_IDLE_WATTS, N_MAX_WATTS, POD_COLUMNS, Cluster
from shoal_common.reward import ObjectiveWeights
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.physics import S_IO, Y_GPU_SHARING, Y_INTERFERENCE, Y_QUEUE
from shoal_common.twin.scenarios import embedded_fleet
from shoal_common.twin.state import D_END, E_NODE, E_POD, E_TIME, J_SUMS, J_USED, J_WATTS

INTERVAL_SECONDS = 15.0
ENDS, MEASUREMENT, STARTS = 0, 1, 2  # in this order where they coincide: measured before a decision


@dataclass
class Tables:
    cluster: Cluster

    def row(self, name):
        return self.cluster.names.index(name)


def _run(seconds, contention=1.0):
    """A twin under a mix of scorers, and what was measured at every 15 s.

    `contention` multiplies how much pods disturb each other in that twin, which the estimator is not told.
    """
    env = VectorEnv([replace(embedded_fleet()[0], seconds=seconds)], [5])
    env.reset()
    for column in (*range(Y_INTERFERENCE, Y_INTERFERENCE + 4), Y_QUEUE, Y_GPU_SHARING):
        env.state.physics[0, 0, column] *= contention
    measured, last = [], -np.inf
    while not env.done.all():
        now, rates = float(env.clock[0]), env.state.rates[0]
        if now - last >= INTERVAL_SECONDS:
            columns = (rates[:, J_USED], rates[:, J_SUMS + S_IO], rates[:, J_WATTS])
            measured.append((now, *(column.copy() for column in columns)))
            last = now
        env.act(env.choose({"kube@1.36": 0.5, "random": 0.5}))
    return env, measured


@pytest.fixture(scope="module")
def episode():
    return _run(7_200.0)


def _events(env, measured):
    """(time, kind, decision or measurement, pod) of pods that were placed once, in order."""
    decisions = env.state.decisions[0, : int(env.decision[0])]
    pods, times = np.unique(decisions[:, E_POD], return_counts=True)
    once = set(pods[times == 1])
    for d, row in enumerate(decisions):
        if row[E_POD] in once:
            end = env.state.pods[0, int(row[E_POD]), D_END]
            yield row[E_TIME], STARTS, d, int(row[E_POD])
            if np.isfinite(end):
                yield end, ENDS, d, int(row[E_POD])
    for i, (now, *_) in enumerate(measured):
        yield now, MEASUREMENT, i, 0


def _rewards(env, measured, cluster=None):
    """What the estimator gives each decision that closed, and what the twin gives it."""
    cluster = cluster or env.cluster(0)
    rates, windows, rewards = NodeRates(Tables(cluster), env.config.horizon), {}, {}
    decisions, pods = env.state.decisions[0], env.state.pods[0]
    for t, kind, i, p in sorted(_events(env, measured)):
        if kind == STARTS:
            name, row = cluster.names[int(decisions[i, E_NODE])], pods[p, :POD_COLUMNS].copy()
            windows[i] = rates.open(str(p), ("a", str(p)), name, row, t)
        elif kind == ENDS:
            if i in windows:
                rewards[i] = rates.close(windows.pop(i), t).reward
            rates.removed(str(p), t)
        else:
            rows = zip(cluster.names, *measured[i][1:], strict=True)
            rates.measured({n: Measured(cpu_millicores=c, io=o, watts=w) for n, c, o, w in rows}, t)
        for j in [j for j, w in windows.items() if t >= w.begin + rates.horizon.seconds]:
            rewards[j] = rates.close(windows.pop(j), t).reward
    truth, closed = env.rewards("measurement")
    rows = [d for d in sorted(rewards) if rewards[d] is not None and closed[0, d]]
    return np.array([rewards[d] for d in rows]), truth[0, rows]


def _correlation(a, b):
    return float(np.corrcoef(a, b)[0, 1])


def test_every_term_correlates_with_the_twins_and_has_its_scale(episode):
    live, twin = _rewards(*episode)
    assert len(live) > 500
    for term in range(4):
        assert _correlation(live[:, term], twin[:, term]) > 0.95
        assert np.polyfit(twin[:, term], live[:, term], 1)[0] == pytest.approx(1.0, abs=0.1)
    weights = episode[0].weights.array()
    assert _correlation(live @ weights, twin @ weights) > 0.98


def test_measured_watts_correct_a_power_table_that_is_wrong(episode):
    env, measured = episode
    cluster = env.cluster(0)
    wrong = cluster.node.copy()
    factors = np.random.default_rng(3).uniform(0.5, 1.5, len(wrong))
    for column in (N_IDLE_WATTS, N_MAX_WATTS, N_GPU_WATTS):
        wrong[:, column] *= factors
    believed = replace(cluster, node=wrong)
    with_watts, twin = _rewards(env, measured, believed)
    without = [(now, cpu, io, np.full(len(cpu), np.nan)) for now, cpu, io, _ in measured]
    without_watts, _ = _rewards(env, without, believed)
    errors = [np.sqrt(np.mean((live[:, 2] - twin[:, 2]) ** 2)) for live in (with_watts, without_watts)]
    assert errors[0] < errors[1] / 2


def test_measured_use_improves_what_apps_are_known_to_use(episode):
    env, measured = episode
    errors = []
    for table in (measured, []):
        live, twin = _rewards(env, table)
        errors.append(np.sqrt(np.mean((live - twin) ** 2, axis=0)))
    assert (errors[0][:2] < errors[1][:2]).all()  # stranded capacity and QoS


@pytest.mark.parametrize("contention", [0.5, 2.0])
def test_a_wrong_contention_model_spoils_the_quality_term_alone(contention):
    """Pods disturb each other half or twice as much as the estimator believes."""
    live, twin = _rewards(*_run(3_600.0, contention))
    correlations = [_correlation(live[:, term], twin[:, term]) for term in range(4)]
    assert min(correlations[0], *correlations[2:]) > 0.94
    assert 0.5 < correlations[1] < 0.99
    weights = ObjectiveWeights().array()
    assert _correlation(live @ weights, twin @ weights) > 0.97
