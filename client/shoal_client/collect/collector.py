# SPDX-License-Identifier: Apache-2.0
"""The loop that asks Prometheus and hands what it says to the cluster's state.

While Prometheus is away the last good values stand until they are too old, then nodes are unknown: the state
falls back to requests and scheduling goes on. A pod that ends after the last sample takes its share with it
within a second, without waiting for the next one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np

from shoal_client import metrics
from shoal_client.collect.assemble import MEASURED_FEATURES, Assembler, without_pod
from shoal_client.collect.features import COLUMN, QUERIES
from shoal_client.collect.measured import Measured, PodName
from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.collect.queries import DCGM, KUBELET
from shoal_client.collect.rounds import Questioner, Round
from shoal_client.collect.values import LiveMatrix, LiveValues
from shoal_common.cluster import N_CPU, N_EXISTS, N_MEMORY, U_CPU, U_MEMORY, Cluster
from shoal_common.errors import ShoalError
from shoal_common.pods import NodeRecord, PodRecord

log = logging.getLogger(__name__)

REDELIVER_SECONDS: Final = 1.0
LOOK_BACK: Final = tuple(q for q in QUERIES if not q.devices and q.name in MEASURED_FEATURES)


class NodeState(Protocol):
    """What is asked of the cluster's state."""

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Nodes by name."""

    @property
    def pods(self) -> Mapping[str, PodRecord]:
        """Pods by uid."""

    @property
    def cluster(self) -> Cluster:
        """Nodes as tables."""

    def row(self, name: str) -> int:
        """The row of a node; negative where there is none."""


class PodChange(Protocol):
    """What the state tells of a pod."""

    @property
    def before(self) -> PodRecord | None:
        """The pod as it was; None for a new one."""

    @property
    def after(self) -> PodRecord | None:
        """The pod as it is; None once it is deleted."""


Listener = Callable[[Mapping[str, Measured]], object]


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """How often is asked, and over which window rates are taken.

    `window_seconds` must hold at least two scrapes, better four; it is an upper bound of a rate's own age.
    """

    interval_seconds: float = 30.0
    window_seconds: float = 120.0


@final
class Collector:
    """Asks in a thread of its own. Listeners get all nodes each time, those without any value included."""

    def __init__(
        self,
        client: PrometheusClient,
        state: NodeState,
        listeners: Sequence[Listener],
        settings: CollectorSettings | None = None,
    ) -> None:
        self._client, self._state, self._listeners = client, state, tuple(listeners)
        self._settings = settings or CollectorSettings()
        self._lock = threading.Lock()
        self._values = LiveValues()
        self._last = Round()
        self._table: dict[str, Measured] = {}
        self._looked_back = self._changed = False
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask, at once and then at every interval."""
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has ended, at most after one request's deadline."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=15.0)

    def collect(self) -> None:
        """Ask once and deliver, also when Prometheus is away. Never raises."""
        begin = time.monotonic()
        try:
            self._ask()
            result = "ok"
        except ShoalError as e:
            log.warning("no metrics this round: %s", e)
            result = "unavailable"
        except Exception:
            log.exception("no metrics this round")
            result = "error"
        metrics.METRICS_ROUNDS.labels(result).inc()
        metrics.METRICS_ROUND_SECONDS.observe(time.monotonic() - begin)
        self._assemble()
        self._deliver()

    def pod_changed(self, change: PodChange) -> None:
        """Take up that a pod ended or was deleted; called by the state for every change of a pod."""
        before, after = change.before, change.after
        if before is None or not before.node_name or before.finished:
            return
        if after is not None and not after.finished:
            return
        self._ended(before.node_name, (before.namespace, before.name))

    def matrix(self) -> LiveMatrix:
        """All live features of all nodes now."""
        with self._lock:
            return self._values.matrix(time.monotonic())

    def _ended(self, node: str, pod: PodName) -> None:
        with self._lock:
            measured = self._table.get(node)
            if measured is None or pod not in measured.pods:
                return
            self._table[node] = without_pod(measured, pod)
            self._changed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            due = time.monotonic() + self._settings.interval_seconds
            self.collect()
            while not self._stop.is_set() and (left := due - time.monotonic()) > 0:
                if self._wake.wait(left):
                    self._stop.wait(min(left, REDELIVER_SECONDS))
                    self._wake.clear()
                    self._deliver_changed()

    def _ask(self) -> None:
        nodes = dict(self._state.nodes)
        with self._lock:
            values = self._values.copy(nodes)
        questions = Questioner(self._client, nodes, self._settings.window_seconds)
        done = questions.ask(values)
        if not self._looked_back:
            now = time.monotonic()
            missing = [q for q in LOOK_BACK if values.unknown(COLUMN[q.name], now)]
            questions.look_back(values, missing)
            self._looked_back = True
        with self._lock:
            self._values, self._last = values, done
        self._report(done)

    def _assemble(self) -> None:
        now = time.monotonic()
        here = {(p.namespace, p.name) for p in list(self._state.pods.values()) if not p.finished}
        with self._lock:
            make = Assembler(self._values, now)
            table = {}
            for name in list(self._state.nodes):
                measured = self._measured(make, name, now)
                for gone in measured.pods.keys() - here:  # a rate remembers a pod for as long as its window
                    measured = without_pod(measured, gone)
                table[name] = measured
            self._table, self._changed = table, False

    def _measured(self, make: Assembler, name: str, now: float) -> Measured:
        row = self._state.row(name)
        if row < 0:  # it went in the meantime
            return Measured()
        sampled, free = self._last.gpu_free.get(name, (-math.inf, ()))
        pods = self._last.pods.get(name, {}) if self._pods_fresh(name, now) else {}
        fresh = now - sampled <= DCGM.max_age_seconds
        return make.measured(name, self._state.cluster.node[row], free if fresh else (), pods)

    def _pods_fresh(self, node: str, now: float) -> bool:
        report = self._last.sources.get(KUBELET.name)
        age = self._settings.window_seconds if report is None else report.nodes.get(node, 0.0)
        return now - self._last.at + age <= KUBELET.max_age_seconds

    def _deliver(self) -> None:
        with self._lock:
            table = dict(self._table)
        for listener in self._listeners:
            listener(table)
        _report_use(self._state.cluster, table, self._state.row)

    def _deliver_changed(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, False
        if changed:
            self._deliver()

    def _report(self, done: Round) -> None:
        for name, report in done.sources.items():
            ages = list(report.nodes.values())
            metrics.METRICS_NODES.labels(name).set(len(ages))
            metrics.METRICS_UNMATCHED.labels(name).set(len(report.unmatched))
            metrics.METRICS_AGE.labels(name).set(float(np.median(ages)) if ages else math.inf)
        metrics.METRICS_DUPLICATES.set(done.duplicates.total())
        metrics.METRICS_REFUSED.set(len(done.refused))
        for name, reason in done.refused.items():
            log.warning("query of %s refused: %s", name, reason)


def _report_use(cluster: Cluster, table: Mapping[str, Measured], row: Callable[[str], int]) -> None:
    """Requested and used share of the cluster; the used one over the nodes that are measured."""
    exists = cluster.node[:, N_EXISTS] == 1
    for resource, column, requested in (("cpu", N_CPU, U_CPU), ("memory", N_MEMORY, U_MEMORY)):
        total = cluster.node[exists, column].sum()
        share = cluster.use[exists, requested].sum() / total if total else math.nan
        metrics.CLUSTER_REQUESTED.labels(resource).set(share)
        used = capacity = 0.0
        for name, measured in table.items():
            value = measured.cpu_millicores if resource == "cpu" else measured.memory_bytes
            if value is not None and (n := row(name)) >= 0:
                used, capacity = used + value, capacity + cluster.node[n, column]
        metrics.CLUSTER_USED.labels(resource).set(used / capacity if capacity else math.nan)
