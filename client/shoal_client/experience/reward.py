# SPDX-License-Identifier: Apache-2.0
"""The reward of a live decision: the change of the chosen node's own rate, integrated over a window.

The twin's `measurement` form (docs/twin.md, docs/decisions/002) on what a live cluster can tell. Between two
events on a node its rate is constant; an event is a pod that comes or goes and a new measurement:

    d(t) = rate of the node now - its rate just before the bind
    R    = 4 N / (tau (1 - exp(-H / tau)))  integral from the bind to min(end, bind + H) of exp(-t / tau) d(t)

with the terms and signs of `shoal_common.reward`, each clipped at 6. A rate comes from the twin's own
equations (`twin.accounting.node_terms`), fed with what is measured:

- CPU: what a pod was measured to use, else its share of the node's measured use, in proportion to what apps
  are known to use; I/O: its share. That holds until the next measurement: a pod that ends takes its part with
  it, a pod that comes (or is not in what was measured) brings what its app is known to use;
- power: the node's power curve at that use, times what measured watts were of it at the last measurement;
- slowdown, and from it useful work and loss of service quality: the contention model on these loads. No
  exporter measures a pod's slowdown.

The rate before the bind is computed last, when the window closes: the pods that were there may have been
measured only afterwards. An error in what a neighbour uses is then the same on both sides of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, final

import numpy as np

from shoal_client.collect.measured import Measured, PodName
from shoal_client.experience.records import F64
from shoal_common.cluster import (
    N_CPU,
    N_DEEP_IDLE,
    N_EXISTS,
    N_GPU_WATTS,
    N_GPUS,
    N_IDLE_WATTS,
    N_MAX_WATTS,
    N_SPEED,
    NODE_COLUMNS,
    P_CLASS,
    P_CPU_USE,
    P_IO_USE,
    POD_COLUMNS,
    Cluster,
)
from shoal_common.twin.accounting import PENDING_WEIGHT, PRICE_WEIGHT, node_terms, sum_pods
from shoal_common.twin.batch import CORES_PER_REFERENCE_POD, RewardHorizon
from shoal_common.twin.env import REWARD_BOUND, REWARD_SCALE
from shoal_common.twin.physics import (
    R_CPU,
    R_IO,
    R_USE,
    RUNNING_COLUMNS,
    S_EXCESS,
    S_WANTED,
    SUMS,
    deep_watts,
    default_physics,
    queueing,
    stretch,
    watts,
)
from shoal_common.twin.placement import EVICTION_SECONDS
from shoal_common.twin.state import ENV_COLUMNS, SLOTS, V_CAPACITY, V_PRICE, V_REFERENCE, V_WATT_RANGE, WORK

FACTOR_BOUNDS: Final = (0.2, 5.0)
"""Of measured over known use: beyond it something else than the pods is measured."""

WATTS_BOUNDS: Final = (0.25, 4.0)  # of measured watts over the curve's

REFRESH_SECONDS: Final = 10.0  # how old the cluster's totals may be

Reward = tuple[float, float, float, float]


class Nodes(Protocol):
    """What is asked of the cluster's state."""

    @property
    def cluster(self) -> Cluster:
        """The nodes as tables."""

    def row(self, name: str) -> int:
        """The row of a node; negative where there is none."""


@dataclass(slots=True)
class _Running:
    row: F64  # [POD_COLUMNS]
    name: PodName
    cpu: float  # millicores it is taken to use
    io: float
    measured: bool = False


@dataclass(slots=True)
class Window:
    """The open credit of one bind; `broken` where the node's rate was not known throughout."""

    uid: str
    node: str
    begin: float
    before: list[_Running]  # the pods that were there
    last: float
    integral: F64 = field(default_factory=lambda: np.zeros(4))  # of the node's rate, discounted
    weight: float = 0.0  # of the discount
    watt_seconds: float = 0.0
    slow_seconds: float = 0.0  # slowdown of the pod, integrated
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """What a closed window comes to; None and NaN where it is not known."""

    reward: Reward | None
    seconds: float = 0.0
    watts: float = math.nan  # mean power of the node
    slowdown: float = math.nan  # mean slowdown of the pod, as the contention model has it


@dataclass(slots=True)
class _Node:
    pods: dict[str, _Running] = field(default_factory=dict)  # by uid
    windows: list[Window] = field(default_factory=list)
    background: float = 0.0  # millicores measured beside the pods
    watts: float | None = None  # measured with these pods on it, not yet compared with the curve
    watts_ratio: float = 1.0  # measured over the curve's at the time of measuring
    rate: F64 | None = None  # [4]; None where it cannot be computed
    power: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)  # slowdown of the pods that have a window
    known: bool = False  # whether rate and power are those of the present pods


@final
class NodeRates:
    """Rates of all nodes and the open windows on them. Not thread-safe: its owner locks.

    Times are monotonic; one that lies before the last is taken as the last.
    """

    def __init__(self, nodes: Nodes, horizon: RewardHorizon | None = None, price: float = 1.0) -> None:
        self._nodes, self.horizon = nodes, horizon or RewardHorizon()
        self._state: dict[str, _Node] = {}
        self._where: dict[str, str] = {}  # uid -> node
        self._physics = default_physics()
        self._env, self._size = np.zeros(ENV_COLUMNS), 0
        self._env[V_PRICE] = price
        self._refreshed = -math.inf

    def refresh(self, at: float) -> None:
        """Take up the cluster's capacity, power range and size."""
        self._refreshed = at
        node = self._nodes.cluster.node
        real = node[node[:, N_EXISTS] == 1]
        peak = real[:, N_MAX_WATTS] + real[:, N_GPU_WATTS] * real[:, N_GPUS]
        self._env[V_CAPACITY] = (real[:, N_CPU] * real[:, N_SPEED]).sum()
        self._env[V_WATT_RANGE] = (peak - real[:, N_IDLE_WATTS] * real[:, N_DEEP_IDLE]).sum()
        self._env[V_REFERENCE] = real[:, N_CPU].sum() / 1000 / CORES_PER_REFERENCE_POD
        self._size = len(real)

    def open(self, uid: str, name: PodName, node: str, pod: F64, at: float) -> Window:
        """Place a pod (row [POD_COLUMNS]) on a node and begin its window."""
        if at - self._refreshed >= REFRESH_SECONDS:
            self.refresh(at)
        self.removed(uid, at)
        state = self._settled(node, at)
        window = Window(uid, node, at, list(state.pods.values()), at, broken=state.rate is None)
        self.placed(uid, name, node, pod, at)
        state.windows.append(window)
        return window

    def close(self, window: Window, at: float, cost: bool = False) -> Credit:
        """End a window, at the latest at its horizon; `cost` adds that of an eviction or a kill."""
        state = self._settled(window.node, at)
        state.windows = [w for w in state.windows if w is not window]
        self._forget(window.node, state)
        seconds = window.last - window.begin
        base = self._terms(window.node, window.before, state)
        if window.broken or seconds <= 0 or base is None:
            return Credit(None, seconds)
        integral = window.integral - window.weight * base[0] + (self._cost() if cost else 0.0)
        means = window.watt_seconds / seconds, window.slow_seconds / seconds
        return Credit(self._scaled(integral), seconds, *means)

    def refused(self, window: Window, at: float) -> Credit:
        """End the window of a pod that the kubelet refused: it costs as much as a kill, and nothing else."""
        self.close(window, at)
        return Credit(None if window.broken else self._scaled(self._cost()))

    def _cost(self) -> F64:
        """What an eviction or a kill adds to an integral [4]: as much as a minute of waiting."""
        cost = np.zeros(4)
        cost[3] = -PENDING_WEIGHT * EVICTION_SECONDS / self._env[V_REFERENCE]
        return cost

    def placed(self, uid: str, name: PodName, node: str, pod: F64, at: float) -> None:
        """A pod (row [POD_COLUMNS]) runs on a node from now on; again for the same pod changes its row."""
        self.removed(uid, at)
        state = self._state.setdefault(node, _Node())
        self._before_change(node, state, at)
        state.pods[uid] = _Running(pod, name, float(pod[P_CPU_USE]), float(pod[P_IO_USE]))
        self._where[uid] = node

    def removed(self, uid: str, at: float) -> None:
        """A pod holds nothing any more; nothing happens where it was not known."""
        node = self._where.pop(uid, None)
        if node is None:
            return
        state = self._state[node]
        self._before_change(node, state, at)
        del state.pods[uid]
        self._forget(node, state)

    def measured(self, table: Mapping[str, Measured], at: float) -> None:
        """Take up what was measured on nodes; a node that the table lacks goes back to what apps use."""
        self.refresh(at)
        for name, state in list(self._state.items()):
            if state.windows:  # elsewhere the last measurement was not looked at
                self._before_change(name, state, at)
            _take(state, table.get(name))
            state.known = False
            self._forget(name, state)

    def use(self, node: str) -> dict[str, tuple[float, float]]:
        """CPU (millicores) and I/O of a node's pods that are in what was measured, by uid."""
        state = self._state.get(node)
        pods = {} if state is None else state.pods
        return {uid: (pod.cpu, pod.io) for uid, pod in pods.items() if pod.measured}

    def _settled(self, name: str, at: float) -> _Node:
        """The node with all its windows integrated up to `at` and its rate known."""
        state = self._state.setdefault(name, _Node())
        self._compute(name, state)
        self._settle(state, at)
        return state

    def _before_change(self, name: str, state: _Node, at: float) -> None:
        """Bring the node up to `at`; only where somebody looks, as a cluster has thousands of nodes."""
        if state.windows or state.watts is not None:
            self._compute(name, state)
            self._settle(state, at)
        state.known = False

    def _settle(self, state: _Node, at: float) -> None:
        tau = self.horizon.tau
        for window in state.windows:
            stop = min(at, window.begin + self.horizon.seconds)
            if stop <= window.last:
                continue
            if state.rate is None:
                window.broken = True
            else:
                early, late = (math.exp((window.begin - t) / tau) for t in (window.last, stop))
                window.integral += tau * (early - late) * state.rate
                window.weight += tau * (early - late)
                window.watt_seconds += state.power * (stop - window.last)
                window.slow_seconds += state.slow.get(window.uid, 0.0) * (stop - window.last)
            window.last = stop

    def _compute(self, name: str, state: _Node) -> None:
        """Set rate and power for the present pods, where they are not known."""
        if state.known:
            return
        state.known = True
        present = list(state.pods.values())
        if state.watts is not None:
            measured, state.watts, state.watts_ratio = state.watts, None, 1.0
            expected = self._terms(name, present, state)
            if expected is not None and expected[1] > 0:
                state.watts_ratio = min(max(measured / expected[1], WATTS_BOUNDS[0]), WATTS_BOUNDS[1])
        found = self._terms(name, present, state)
        state.rate, state.power = (None, 0.0) if found is None else found
        state.slow = {} if found is None else self._slowdowns(name, state)

    def _terms(self, name: str, pods: list[_Running], state: _Node) -> tuple[F64, float] | None:
        """Reward terms [4] and power of a node with these pods; None for a node that is not there."""
        node = self._node(name)
        if node is None:
            return None
        rows, sums = self._summed(node, pods, state)
        count, out = len(pods), np.zeros(4)
        slots, work = np.arange(max(count, 1), dtype=np.int32), np.zeros((WORK[0], max(count, SLOTS)))
        node_terms(node, self._physics, self._env, sums, rows, slots, count, work, out)
        power = float(watts(node, sums)) * state.watts_ratio
        if state.watts_ratio != 1.0 and count:
            energy = (power - deep_watts(node)) / self._env[V_WATT_RANGE]
            out[2], out[3] = -energy, -PRICE_WEIGHT * self._env[V_PRICE] * energy
        return out, power

    def _slowdowns(self, name: str, state: _Node) -> dict[str, float]:
        """Slowdowns of the pods that have a window."""
        node, physics = self._node(name), self._physics
        if node is None or not state.windows:
            return {}
        rows, sums = self._summed(node, list(state.pods.values()), state)
        looked_at = {window.uid for window in state.windows}
        return {
            uid: float(stretch(node, physics, sums, row) * queueing(node, physics, sums, row))
            for uid, row in zip(state.pods, rows, strict=False)
            if uid in looked_at
        }

    def _node(self, name: str) -> F64 | None:
        """A node's row in the tables; None where it is not there."""
        row = self._nodes.row(name)
        node: F64 | None = self._nodes.cluster.node[row] if row >= 0 else None
        return None if node is None or node[N_EXISTS] != 1 or node[N_CPU] <= 0 else node

    def _summed(self, node: F64, pods: list[_Running], state: _Node) -> tuple[F64, F64]:
        """Pods as the twin's physics reads them, with what they are taken to use, and their sums."""
        rows, sums = np.zeros((max(1, len(pods)), RUNNING_COLUMNS)), np.zeros(SUMS)
        for row, pod in zip(rows, pods, strict=False):
            row[:POD_COLUMNS] = pod.row
            row[R_CPU] = row[R_USE] = pod.cpu
            row[R_IO] = pod.io
        slots = np.arange(len(rows), dtype=np.int32)
        sum_pods(sums, node, self._physics, rows, slots, len(pods), -1)
        sums[S_WANTED] += state.background
        sums[S_EXCESS] += state.background
        return rows, sums

    def _forget(self, name: str, state: _Node) -> None:
        """A node without pods and windows is made again when it is needed."""
        if not state.pods and not state.windows:
            self._state.pop(name, None)

    def _scaled(self, integral: F64) -> Reward:
        norm = self.horizon.tau * (1 - math.exp(-self.horizon.seconds / self.horizon.tau))
        scaled = np.clip(integral * (REWARD_SCALE * self._size / norm), -REWARD_BOUND, REWARD_BOUND)
        util, qos, energy, penalty = (float(x) for x in scaled)
        return util, qos, energy, penalty


def compile_kernels() -> None:
    """Compile (or load) what a first window needs, before anybody waits for the interpreter."""
    node, pods, slots = np.ones(NODE_COLUMNS), np.ones((1, RUNNING_COLUMNS)), np.zeros(1, np.int32)
    env, sums, physics = np.ones(ENV_COLUMNS), np.zeros(SUMS), default_physics()
    pods[0, P_CLASS] = 0.0
    sum_pods(sums, node, physics, pods, slots, 1, -1)
    node_terms(node, physics, env, sums, pods, slots, 1, np.zeros(WORK), np.zeros(4))
    queueing(node, physics, sums, pods[0])
    stretch(node, physics, sums, pods[0])
    watts(node, sums)
    deep_watts(node)


def _take(state: _Node, measured: Measured | None) -> None:
    """Take up what was measured on a node with the pods that are on it now."""
    state.watts_ratio, state.background = 1.0, 0.0
    power = None if measured is None else measured.watts
    state.watts = power if power is not None and 0 < power < math.inf else None
    for pod in state.pods.values():
        pod.cpu, pod.io, pod.measured = float(pod.row[P_CPU_USE]), float(pod.row[P_IO_USE]), False
    if measured is None:
        return
    inside = [pod for pod in state.pods.values() if not measured.pods or pod.name in measured.pods]
    if measured.io is not None:
        factor = _factor(measured.io, sum(pod.io for pod in inside))
        for pod in inside:
            pod.io *= factor
    if measured.cpu_millicores is not None and 0 <= measured.cpu_millicores < math.inf:
        _share(state, measured, measured.cpu_millicores, inside)


def _share(state: _Node, measured: Measured, total: float, inside: list[_Running]) -> None:
    """Share a node's measured CPU among the pods that are part of it."""
    rest = []
    for pod in inside:
        told = measured.pods[pod.name].cpu_millicores if measured.pods else None
        pod.measured = True
        if told is None or not math.isfinite(told) or told < 0:
            rest.append(pod)
        else:
            pod.cpu = told
            total -= told
    factor = _factor(max(0.0, total), sum(pod.cpu for pod in rest))
    for pod in rest:
        pod.cpu *= factor
    if not rest:
        state.background = max(0.0, total)


def _factor(measured: float, known: float) -> float:
    """Measured use over what apps are known to use; 1 where either is not known."""
    if not math.isfinite(measured) or measured < 0 or known <= 0:
        return 1.0
    return min(max(measured / known, FACTOR_BOUNDS[0]), FACTOR_BOUNDS[1])
