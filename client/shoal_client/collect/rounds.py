# SPDX-License-Identifier: Apache-2.0
"""One round of questions to Prometheus: every query once, joined to nodes, into `LiveValues`.

The age of a sample is Prometheus' own: its clock minus the sample's time, asked for once per exporter. So
neither this machine's nor the nodes' clocks matter; from the answer on the monotonic clock counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import numpy.typing as npt

from shoal_client.collect.features import COLUMN, QUERIES
from shoal_client.collect.gpu_features import NO_MIG
from shoal_client.collect.gpus import DeviceValue, by_device, device_value, is_partitioned, reduce, shares
from shoal_client.collect.join import AddressBook
from shoal_client.collect.measured import PodName, PodUse
from shoal_client.collect.prometheus import PrometheusClient, Series
from shoal_client.collect.queries import KUBELET, SOURCES, Query, Source, expand
from shoal_client.collect.values import LiveValues
from shoal_common.errors import Fatal, Transient
from shoal_common.pods import HOSTNAME, NodeRecord

F64 = npt.NDArray[np.float64]

INSTANCES: Final = "max by (instance, nodename) (node_uname_info)"
CONTAINERS: Final = '{container!="",container!="POD",pod!=""}'
POD_CPU: Final = (
    f"1000 * sum by (namespace, pod, $on) (rate(container_cpu_usage_seconds_total{CONTAINERS}[$w]))"
    f" and sum by (namespace, pod, $on) (container_cpu_usage_seconds_total{CONTAINERS} offset $w)"
)
POD_MEMORY: Final = f"sum by (namespace, pod, $on) (container_memory_working_set_bytes{CONTAINERS})"
FREE_SHARE: Final = "gpu_memory_free"


@dataclass(slots=True)
class SourceReport:
    """How an exporter's series were joined: nodes found with their ages, series that no node claims."""

    nodes: dict[str, float] = field(default_factory=dict)  # node -> age of its samples, seconds
    unmatched: list[dict[str, str]] = field(default_factory=list)


NOTHING: Final = SourceReport()


@dataclass(slots=True)
class Round:
    """What one round brought besides the values. `at` is the monotonic time of its end."""

    at: float = -math.inf
    sources: dict[str, SourceReport] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # query -> what Prometheus said
    duplicates: Counter[str] = field(default_factory=Counter)  # query -> nodes with a series twice
    gpu_free: dict[str, tuple[float, tuple[float, ...]]] = field(
        default_factory=dict
    )  # node -> (sampled, shares)
    pods: dict[str, dict[PodName, PodUse]] = field(default_factory=dict)


@final
class Questioner:
    """Asks one Prometheus. Raises Transient when it is away or `stop` was set. For one thread."""

    def __init__(
        self, client: PrometheusClient, window_seconds: float, stop: threading.Event | None = None
    ) -> None:
        self._client, self._window, self._stop = client, window_seconds, stop or threading.Event()
        self._addresses: dict[str, tuple[object, ...]] = {}
        self._instances: dict[str, str] = {}
        self._book = AddressBook({})
        self._partitioned: set[str] = set()

    def know(self, nodes: Mapping[str, NodeRecord]) -> None:
        """Take up the nodes there are, and what exporters' instances call themselves."""
        found = (s.labels for s in self._instant(INSTANCES))
        instances = {labels.get("instance", ""): labels.get("nodename", "") for labels in found}
        addresses: dict[str, tuple[object, ...]] = {
            name: (n.addresses, n.labels.get(HOSTNAME)) for name, n in nodes.items()
        }
        if (addresses, instances) != (self._addresses, self._instances):
            self._addresses, self._instances = addresses, instances
            self._book = AddressBook(nodes, instances)
        self._partitioned = {name for name, node in nodes.items() if is_partitioned(node)}

    def _instant(self, promql: str) -> list[Series]:
        if self._stop.is_set():
            raise Transient("asked to stop")
        return self._client.instant(expand(promql, self._window))

    def _placed(self, series: list[Series], keys: tuple[str, ...]) -> Iterator[tuple[str | None, Series]]:
        places = self._book.places((s.metric for s in series), keys)
        return zip((node for node, _ in places), series, strict=True)

    def sources(self) -> dict[str, SourceReport]:
        """Which nodes each exporter tells something about, and how old it is."""
        return {source.name: self._source(source) for source in SOURCES}

    def _source(self, source: Source) -> SourceReport:
        report = SourceReport()
        for node, series in self._placed(self._instant(source.age), source.labels):
            if node is None:
                report.unmatched.append(series.labels)
            elif math.isfinite(series.number):
                report.nodes[node] = max(report.nodes.get(node, 0.0), series.number, 0.0)
        return report

    def ask(self, values: LiveValues, queries: Iterable[Query] = QUERIES) -> Round:
        """Ask each query once and store what is known."""
        done = Round(sources=self.sources())
        for source in SOURCES:
            self._leave_out_the_young(source, done.sources[source.name])
        ages = {name: self._ages(report, values) for name, report in done.sources.items()}
        devices: list[tuple[Query, dict[str, list[DeviceValue]], float]] = []
        for query in queries:
            try:
                series = self._instant(query.promql)
            except Fatal as e:
                done.refused[query.name] = str(e)
                continue
            at = time.monotonic()
            if query.devices:
                devices.append((query, self._devices(query, series), at))
                continue
            twice = self._store(query, series, at - ages[query.source.name], values)
            if twice:
                done.duplicates[query.name] = twice
        self._store_devices(devices, values, done)
        done.pods, done.at = self._pods(), time.monotonic()
        return done

    def _ages(self, report: SourceReport, values: LiveValues) -> F64:
        """Age of an exporter's samples by row and of none in the last; infinite where it tells nothing."""
        ages = np.full(len(values) + 1, math.inf)
        for node, age in report.nodes.items():
            ages[values.row(node)] = age
        return ages

    def _leave_out_the_young(self, source: Source, report: SourceReport) -> None:
        if source.steady:
            steady = {node for node, _ in self._placed(self._instant(source.steady), source.labels)}
            report.nodes = {node: age for node, age in report.nodes.items() if node in steady}

    def _store(self, query: Query, series: list[Series], sampled: F64, values: LiveValues) -> int:
        """Store one query's series, which were sampled at these times by row; how many exist twice."""
        also = (query.label,) if query.label else ()
        places = self._book.places((s.metric for s in series), query.source.labels, also)
        column: dict[tuple[str, ...], int] = {
            (of,) if also else (): COLUMN[feature.name] for of, feature in query.index.items()
        }
        count, row = len(series), values.row
        rows = np.fromiter((-1 if node is None else row(node) for node, _ in places), np.int64, count)
        columns = np.fromiter((column.get(of, -1) for _, of in places), np.int64, count)
        numbers = np.fromiter((s.number for s in series), np.float64, count)
        return values.put_many(rows, columns, numbers, sampled[rows])

    def _devices(self, query: Query, series: list[Series]) -> dict[str, list[DeviceValue]]:
        found: dict[str, list[DeviceValue]] = defaultdict(list)
        for node, s in self._placed(series, query.source.labels):
            value = None if node is None else device_value(s.labels, s.number)
            if node is not None and value is not None:
                found[node].append(value)
        return found

    def _store_devices(
        self, asked: list[tuple[Query, dict[str, list[DeviceValue]], float]], values: LiveValues, done: Round
    ) -> None:
        partitioned = {
            (node, v.device) for _, found, _ in asked for node, vs in found.items() for v in vs if v.instance
        }
        for query, found, at in asked:
            feature = query.features[0]
            for node, series in found.items():
                devices = by_device(series)
                if devices is None:
                    done.duplicates[query.name] += 1
                    continue
                if feature.name in NO_MIG:  # 0 under MIG says nothing
                    whole = () if node in self._partitioned else tuple(devices)
                    devices = {d: devices[d] for d in whole if (node, d) not in partitioned}
                sampled = at - done.sources[query.source.name].nodes.get(node, math.inf)
                value = reduce(feature, devices)
                if value is not None:
                    values.put(node, COLUMN[feature.name], value, sampled)
                if feature.name == FREE_SHARE and devices:
                    done.gpu_free[node] = (sampled, shares(devices))

    def _pods(self) -> dict[str, dict[PodName, PodUse]]:
        """What each pod uses, by node.

        Left out are pods that are scraped twice, and pods younger than the window: little of what they use is
        in the node's rate yet, so the state adds what it knows of them.
        """
        cpu, memory = (self._pod_values(promql) for promql in (POD_CPU, POD_MEMORY))
        pods: dict[str, dict[PodName, PodUse]] = defaultdict(dict)
        for (node, name), millicores in cpu.items():
            pods[node][name] = PodUse(millicores, memory.get((node, name)))
        return pods

    def _pod_values(self, promql: str) -> dict[tuple[str, PodName], float]:
        found: dict[tuple[str, PodName], list[float]] = defaultdict(list)
        series = self._instant(promql)
        places = self._book.places((s.metric for s in series), KUBELET.labels, ("namespace", "pod"))
        for (node, pod), s in zip(places, series, strict=True):
            if node is not None and math.isfinite(s.number):
                found[node, (pod[0], pod[1])].append(s.number)
        return {key: numbers[0] for key, numbers in found.items() if len(numbers) == 1}

    def look_back(self, values: LiveValues, queries: Iterable[Query]) -> None:
        """Fill what is unknown from the past, as far back as the source's values may be old.

        A gap of a scraper or a restart of this client then costs nothing. A step of a range query may repeat
        a sample of up to Prometheus' look-back (5 min) before it, so ages are lower bounds there.
        """
        end = self._client.server_time()
        at = time.monotonic()
        for query in queries:
            oldest = query.max_age_seconds
            found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
            step = min(oldest / 10, self._window)
            for s in self._client.range(query.text(self._window), end - oldest, end, step):
                node, last = self._book.node(s.metric, query.source.labels), s.last()
                if node is not None and last is not None:
                    found[node, s.metric.get(query.label, "")].append(last)
            for (node, of), lasts in found.items():
                feature = query.index.get(of)
                if feature is not None and len(lasts) == 1:
                    sampled, value = lasts[0]
                    values.put(node, COLUMN[feature.name], value, at - (end - sampled))
