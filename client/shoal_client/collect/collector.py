# SPDX-License-Identifier: Apache-2.0
"""The loop that asks Prometheus and hands what it says to the cluster's state.

While Prometheus is away the last good values stand until they are too old, then nodes are unknown: the state
falls back to requests and scheduling goes on. `Measured.pods` says whose use is in a sample, so that the
state can add pods that came after it and take off those that went.
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
from shoal_client.collect.assemble import Assembler, without_pod
from shoal_client.collect.features import COLUMN, QUERIES
from shoal_client.collect.measured import Measured
from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.collect.queries import DCGM, KUBELET, SOURCES, TURNS, Query
from shoal_client.collect.rounds import NOTHING, Questioner, Round
from shoal_client.collect.values import LiveMatrix, LiveValues
from shoal_common.cluster import N_CPU, N_EXISTS, N_MEMORY, U_CPU, U_MEMORY, Cluster
from shoal_common.errors import ShoalError
from shoal_common.pods import NodeRecord, PodRecord

_log = logging.getLogger("shoal.client.collect")

STOP_SECONDS: Final = 3.0
SYNC_SECONDS: Final = 0.5
DECIDING: Final = tuple(q for q in QUERIES if q.decides)
OTHERS: Final = tuple(q for q in QUERIES if not q.decides)


class NodeState(Protocol):
    """What is asked of the cluster's state."""

    @property
    def synced(self) -> bool:
        """Whether nodes and pods were listed."""

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
        self._state, self._listeners = state, tuple(listeners)
        self._settings = settings or CollectorSettings()
        self._lock = threading.Lock()
        self._values = LiveValues()
        self._last = Round()
        self._stop = threading.Event()
        self._questions = Questioner(client, self._settings.window_seconds, self._stop)
        self._rounds = 0  # that came to their end
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask, once nodes and pods are listed and then at every interval."""
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the question it is at; at most some seconds are waited for that."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=STOP_SECONDS)

    def collect(self) -> None:
        """Ask once and deliver, also when Prometheus is away. Never raises."""
        begin = time.monotonic()
        try:
            self._ask()
            result = "ok"
        except ShoalError as e:
            _log.warning("no metrics this round: %s", e)
            result = "unavailable"
        except Exception:
            _log.exception("no metrics this round")
            result = "error"
        metrics.METRICS_ROUNDS.labels(result).inc()
        metrics.METRICS_ROUND_SECONDS.observe(time.monotonic() - begin)
        self._deliver(self._table())

    def matrix(self) -> LiveMatrix:
        """All live features of all nodes now."""
        with self._lock:
            return self._values.matrix(time.monotonic())

    def _run(self) -> None:
        while not self._state.synced and not self._stop.wait(SYNC_SECONDS):
            pass
        while not self._stop.is_set():
            due = time.monotonic() + self._settings.interval_seconds
            self.collect()
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _ask(self) -> None:
        nodes = {node.name: node for node in list(self._state.nodes.values())}
        with self._lock:
            values = self._values.copy(nodes)
        self._questions.know(nodes)
        try:
            done = self._questions.ask(values, self._turn())
            if self._rounds == 0:
                self._look_back(values)
            self._rounds += 1
        finally:
            with self._lock:
                self._values = values  # what a round brought before it broke off is good
        with self._lock:
            self._last = done
        _report(done)

    def _turn(self) -> tuple[Query, ...]:
        """All queries in the first round; then those that decisions rest on and a part of the others."""
        return DECIDING + (OTHERS if self._rounds == 0 else OTHERS[self._rounds % TURNS :: TURNS])

    def _look_back(self, values: LiveValues) -> None:
        now = time.monotonic()
        missing = [q for q in DECIDING if not q.devices and values.unknown(COLUMN[q.name], now)]
        self._questions.look_back(values, missing)

    def _table(self) -> dict[str, Measured]:
        now = time.monotonic()
        cluster = self._state.cluster
        here = {(p.namespace, p.name) for p in list(self._state.pods.values()) if not p.finished}
        with self._lock:
            make = Assembler(self._values, now)
            table = {}
            for name in list(self._state.nodes):
                measured = self._measured(make, name, cluster, now)
                for gone in measured.pods.keys() - here:  # a rate remembers a pod for as long as its window
                    measured = without_pod(measured, gone)
                table[name] = measured
        return table

    def _measured(self, make: Assembler, name: str, cluster: Cluster, now: float) -> Measured:
        row = self._state.row(name)
        if row < 0:  # it went in the meantime
            return Measured()
        sampled, free = self._last.gpu_free.get(name, (-math.inf, ()))
        pods = self._last.pods.get(name, {}) if self._pods_fresh(name, now) else {}
        fresh = now - sampled <= DCGM.max_age_seconds
        return make.measured(name, cluster.node[row], free if fresh else (), pods)

    def _pods_fresh(self, node: str, now: float) -> bool:
        report = self._last.sources.get(KUBELET.name, NOTHING)
        age = report.nodes.get(node, math.inf)
        return now - self._last.at + age <= KUBELET.max_age_seconds

    def _deliver(self, table: Mapping[str, Measured]) -> None:
        for listener in self._listeners:
            try:
                listener(table)
            except Exception:  # one listener's error must not cost the others their metrics
                metrics.BACKGROUND_ERRORS.labels("collector").inc()
                _log.exception("measurements were not taken up")
        _report_ages(self._last, time.monotonic())
        _report_use(self._state.cluster, table, self._state.row)


def _report(done: Round) -> None:
    for name, report in done.sources.items():
        metrics.METRICS_NODES.labels(name).set(len(report.nodes))
        metrics.METRICS_UNMATCHED.labels(name).set(len(report.unmatched))
    metrics.METRICS_DUPLICATES.set(done.duplicates.total())
    metrics.METRICS_REFUSED.set(len(done.refused))
    for name, reason in done.refused.items():
        _log.warning("query of %s refused: %s", name, reason)


def _report_ages(last: Round, now: float) -> None:
    """Ages go on growing while Prometheus is away."""
    for source in SOURCES:
        ages = list(last.sources.get(source.name, NOTHING).nodes.values())
        age = float(np.median(ages)) + now - last.at if ages else math.inf
        metrics.METRICS_AGE.labels(source.name).set(age)


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
