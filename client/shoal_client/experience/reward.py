# SPDX-License-Identifier: Apache-2.0
"""The reward of a live decision: the change of the chosen node's own rate, integrated over a window.

The twin's `measurement` form (docs/twin.md, docs/decisions/002) on what a live cluster can tell. Between two
events on a node its rate is constant; an event is a pod that comes or goes and a new measurement:

    d(t) = rate of the node now - its rate just before the bind
    R    = 4 N / (tau (1 - exp(-H / tau)))  integral from the bind to min(end, bind + H) of exp(-t / tau) d(t)

with the terms and signs of `shoal_common.reward`, each clipped at 6. A rate comes from the twin's own
equations (`twin.accounting.node_terms`), fed with what is measured:

- CPU and I/O: the node's measured use is shared among its pods in proportion to what their apps are known to
  use. The factor of a measurement holds until the next one, so a pod that ends takes its share with it and a
  pod that comes brings its app's;
- power: measured watts where there are any, else the power curve at the measured CPU use. Watts hold until
  the next measurement; when pods change before it, by the difference that the curve expects;
- slowdown, and from it useful work and loss of service quality: the contention model on these loads. No
  exporter measures a pod's slowdown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, final

import numpy as np

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

REFRESH_SECONDS: Final = 10.0  # how old the cluster's totals may be

Reward = tuple[float, float, float, float]


class Nodes(Protocol):
    """What is asked of the cluster's state."""

    @property
    def cluster(self) -> Cluster:
        """The nodes as tables."""

    def row(self, name: str) -> int:
        """The row of a node; negative where there is none."""


class Measured(Protocol):
    """What was measured on a node; None where it is not known or too old."""

    @property
    def cpu_millicores(self) -> float | None:
        """CPU in use."""

    @property
    def io(self) -> float | None:
        """I/O in use, in the unit of the pods' I/O."""

    @property
    def watts(self) -> float | None:
        """Power."""


@dataclass(slots=True)
class Window:
    """The open credit of one bind; `broken` where the node's rate was not known throughout."""

    uid: str
    node: str
    begin: float
    base: F64  # [4], the node's rate just before the bind
    last: float
    integral: F64 = field(default_factory=lambda: np.zeros(4))
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
    pods: dict[str, F64] = field(default_factory=dict)  # uid -> row [POD_COLUMNS]
    windows: list[Window] = field(default_factory=list)
    cpu_factor: float = 1.0
    io_factor: float = 1.0
    watts: float | None = None  # measured with these pods on it, not yet compared with the curve
    watts_above: float = 0.0  # measured power above the curve's at the time of measuring
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

    def open(self, uid: str, node: str, pod: F64, at: float) -> Window:
        """Place a pod (row [POD_COLUMNS]) on a node and begin its window."""
        if at - self._refreshed >= REFRESH_SECONDS:
            self.refresh(at)
        self.removed(uid, at)
        state = self._settled(node, at)
        base = np.zeros(4) if state.rate is None else state.rate
        window = Window(uid, node, at, base, at, broken=state.rate is None)
        self.placed(uid, node, pod, at)
        state.windows.append(window)
        return window

    def close(self, window: Window, at: float, cost: bool = False) -> Credit:
        """End a window, at the latest at its horizon; `cost` adds that of an eviction or a kill."""
        state = self._settled(window.node, at)
        state.windows = [w for w in state.windows if w is not window]
        self._forget(window.node, state)
        seconds = window.last - window.begin
        if window.broken or seconds <= 0:
            return Credit(None, seconds)
        integral = window.integral + (self._cost() if cost else 0.0)
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

    def placed(self, uid: str, node: str, pod: F64, at: float) -> None:
        """A pod (row [POD_COLUMNS]) runs on a node from now on; again for the same pod changes its row."""
        self.removed(uid, at)
        state = self._state.setdefault(node, _Node())
        self._before_change(node, state, at)
        state.pods[uid] = pod
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
            self._before_change(name, state, at)
            _take(state, table.get(name))
            self._forget(name, state)

    def use(self, node: str) -> dict[str, tuple[float, float]]:
        """The CPU (millicores) and I/O that each pod of a node is taken to use, by uid."""
        state = self._state.get(node)
        if state is None:
            return {}
        factors = state.cpu_factor, state.io_factor
        return {
            uid: (pod[P_CPU_USE] * factors[0], pod[P_IO_USE] * factors[1]) for uid, pod in state.pods.items()
        }

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
                window.integral += tau * (early - late) * (state.rate - window.base)
                window.watt_seconds += state.power * (stop - window.last)
                window.slow_seconds += state.slow.get(window.uid, 0.0) * (stop - window.last)
            window.last = stop

    def _compute(self, name: str, state: _Node) -> None:
        """Set rate and power for the present pods, where they are not known."""
        if state.known:
            return
        state.known = True
        row = self._nodes.row(name)
        node = self._nodes.cluster.node[row] if row >= 0 else None
        if node is None or node[N_EXISTS] != 1 or node[N_CPU] <= 0:
            state.rate = None
            return
        pods = self._running(state)
        count, sums, out = len(pods), np.zeros(SUMS), np.zeros(4)
        slots, work = np.arange(max(count, 1), dtype=np.int32), np.zeros((WORK[0], max(count, SLOTS)))
        sum_pods(sums, node, self._physics, pods, slots, count, -1)
        node_terms(node, self._physics, self._env, sums, pods, slots, count, work, out)
        curve = float(watts(node, sums))
        if state.watts is not None:
            state.watts_above, state.watts = state.watts - curve, None
        state.power = max(0.0, curve + state.watts_above)
        if state.watts_above and count:
            energy = (state.power - deep_watts(node)) / self._env[V_WATT_RANGE]
            out[2], out[3] = -energy, -PRICE_WEIGHT * self._env[V_PRICE] * energy
        state.rate = out
        looked_at = {window.uid for window in state.windows}
        state.slow = {
            uid: float(stretch(node, self._physics, sums, pod) * queueing(node, self._physics, sums, pod))
            for uid, pod in zip(state.pods, pods, strict=True)
            if uid in looked_at
        }

    def _running(self, state: _Node) -> F64:
        """The node's pods as the twin's physics reads them, with their share of what is measured."""
        rows = np.zeros((max(1, len(state.pods)), RUNNING_COLUMNS))
        if not state.pods:
            return rows[:0]
        rows[:, :POD_COLUMNS] = np.stack(list(state.pods.values()))
        rows[:, R_CPU] = rows[:, R_USE] = rows[:, P_CPU_USE] * state.cpu_factor
        rows[:, R_IO] = rows[:, P_IO_USE] * state.io_factor
        return rows

    def _forget(self, name: str, state: _Node) -> None:
        """A node without pods and windows is made again when it is needed."""
        if not state.pods and not state.windows:
            self._state.pop(name, None)

    def _scaled(self, integral: F64) -> Reward:
        norm = self.horizon.tau * (1 - math.exp(-self.horizon.seconds / self.horizon.tau))
        scaled = np.clip(integral * (REWARD_SCALE * self._size / norm), -REWARD_BOUND, REWARD_BOUND)
        util, qos, energy, penalty = (float(x) for x in scaled)
        return util, qos, energy, penalty


def _take(state: _Node, measured: Measured | None) -> None:
    power = None if measured is None else measured.watts
    state.cpu_factor = _factor(None if measured is None else measured.cpu_millicores, state.pods, P_CPU_USE)
    state.io_factor = _factor(None if measured is None else measured.io, state.pods, P_IO_USE)
    state.watts_above = 0.0
    state.watts = power if power is not None and math.isfinite(power) else None


def _factor(measured: float | None, pods: Mapping[str, F64], column: int) -> float:
    """Measured use over what the pods' apps are known to use; 1 where either is not known."""
    known = sum(float(pod[column]) for pod in pods.values())
    if measured is None or not math.isfinite(measured) or measured < 0 or known <= 0:
        return 1.0
    return min(max(measured / known, FACTOR_BOUNDS[0]), FACTOR_BOUNDS[1])
