# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler against an API server over HTTP: the default profile, extenders, queue and binding.

Source: pkg/scheduler/schedule_one.go, v1.36.2. Filters and scores are `shoal_common.kube`'s. Where it
differs: no preemption, no volume and resource claim plugins, bindings are made one after another by one
thread, and queueing hints are coarse (`queue.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from shoal_common.kube.profile import first_refusal
from shoal_common.kube.selection import choose_host, num_feasible_nodes_to_find, sample_candidates, zone_order
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.pods import PodRecord
from shoal_simulations.control_plane.cache import Cache
from shoal_simulations.control_plane.client import ApiClient, Feed
from shoal_simulations.control_plane.configuration import Configuration
from shoal_simulations.control_plane.extenders import Extender, ExtenderError, in_order
from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.queue import Queue, Waiting
from shoal_simulations.control_plane.registry import stamp

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One scheduling cycle of a pod: where it went (""), out of which candidates, and what went wrong."""

    pod: str
    uid: str
    node: str
    candidates: tuple[str, ...]
    scored: bool
    totals: Mapping[str, float]
    reason: str = ""
    message: str = ""
    ignored: tuple[str, ...] = ()
    """Failures of extenders that changed nothing."""


class _Refused(Exception):
    """No node, or an error: the reason and message of the pod's condition."""

    def __init__(self, reason: str, message: str, *, by_extender: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.by_extender = reason, message, by_extender


@dataclass(slots=True)
class _Cycle:
    """What a cycle gathers."""

    pod: PodRecord
    manifest: Content
    feasible: list[NodeInfo] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    totals: dict[str, float] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    by_extender: bool = False


@final
class Scheduler:
    """A scheduler as a context manager; `attempts` tells what it did.

    `configuration` names profiles, by the scheduler names whose pods they serve, and extenders, which see the
    pods of all of them.
    """

    def __init__(
        self,
        url: str,
        configuration: Configuration | None = None,
        *,
        initial_backoff: float = 1.0,
        max_backoff: float = 10.0,
        seed: int = 0,
    ) -> None:
        self.attempts: list[Attempt] = []
        configuration = configuration or Configuration()
        self._profiles, self._percentage = configuration.profiles, configuration.percentage
        self._client = ApiClient(url, "kube-scheduler/v1.36.2 (virtual)")
        self._extenders = in_order([Extender(stanza) for stanza in configuration.extenders])
        self._queue = Queue(initial_backoff, max_backoff)
        self._rng = np.random.default_rng(seed)
        self._start = 0
        self._changed = threading.Condition()
        self._cache = Cache(self._queue, frozenset(self._profiles), self._changed)
        self._stopping = False
        self._binders = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bind")
        self._feeds = [
            Feed(self._client, path, self._cache.replacing(kind), self._cache.changing(kind))
            for kind, path in Cache.PATHS.items()
        ]
        self._thread = threading.Thread(target=self._run, daemon=True, name="scheduler")

    def __enter__(self) -> Self:
        for feed in self._feeds:
            feed.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        self._binders.shutdown()
        for feed in self._feeds:
            feed.stop()
        for extender in self._extenders:
            extender.close()
        self._client.close()

    @property
    def bound(self) -> frozenset[str]:
        """Uids of the pods that the watch shows, or a binding assumes, on a node."""
        with self._changed:
            return self._cache.bound

    def _run(self) -> None:
        for feed in self._feeds:
            while not feed.listed.wait(0.05):
                if self._stopping:
                    return
        while (waiting := self._next()) is not None:
            self._schedule(waiting)

    def _next(self) -> Waiting | None:
        """The next pod; None when stopping."""
        with self._changed:
            while not self._stopping:
                waiting = self._queue.pop(time.monotonic())
                if waiting is not None:
                    return waiting
                due = self._queue.next_at()
                self._changed.wait(None if due is None else max(0.0, due - time.monotonic()))
        return None

    def _schedule(self, waiting: Waiting) -> None:
        with self._changed:
            known = self._cache.pending.get(waiting.uid)
            snapshot = self._cache.snapshot()
        if known is None:
            return
        cycle = _Cycle(*known)
        try:
            self._find(cycle, snapshot)
            node, scored = self._choose(cycle, snapshot)
        except _Refused as refused:
            self._refuse(waiting, cycle, refused)
            return
        with self._changed:
            self._cache.assume(cycle.pod, node)
        self._record(cycle, node, scored, "", "")
        self._binders.submit(self._bind, waiting, cycle, node)

    def _find(self, cycle: _Cycle, snapshot: Snapshot) -> None:
        """Leave the feasible nodes in the cycle: built-in filters on a rotating sample, then extenders.

        Raises:
            _Refused: none is left, or an extender that may not be ignored failed.
        """
        profile = self._profiles[cycle.pod.scheduler_name]
        infos = {info.name: info for info in snapshot.infos}
        order = [infos[node.name] for node in zone_order(snapshot.nodes)]
        test = first_refusal(profile.filters, snapshot, cycle.pod)

        def fits(index: int) -> bool:
            refusal = test(order[index])
            cycle.reasons.update(refusal.reasons if refusal else ())
            return refusal is None

        wanted = num_feasible_nodes_to_find(len(order), self._percentage)
        sample = sample_candidates(fits, len(order), self._start, wanted)
        self._start = sample.next_start
        cycle.feasible = [order[index] for index in sample.candidates]
        for extender in self._extenders:
            if cycle.feasible and extender.is_interested(cycle.manifest):
                self._filter(cycle, extender)
        if not cycle.feasible:
            listed = ", ".join(sorted(f"{count} {reason}" for reason, count in cycle.reasons.items()))
            message = f"0/{len(order)} nodes are available: {listed}." if order else "no nodes available"
            raise _Refused("Unschedulable", message, by_extender=cycle.by_extender)

    def _filter(self, cycle: _Cycle, extender: Extender) -> None:
        try:
            result = extender.filter(cycle.manifest, self._manifests(cycle.feasible))
        except ExtenderError as error:
            if not extender.stanza.ignorable:
                raise _Refused("SchedulerError", str(error)) from error
            cycle.ignored.append(str(error))
            return
        infos = {info.name: info for info in cycle.feasible}
        cycle.by_extender = cycle.by_extender or len(result.kept) < len(infos)
        cycle.reasons.update([*result.failed.values(), *result.unresolvable.values()])
        cycle.feasible = [infos[name] for name in result.kept]
        if result.full_nodes:  # kubernetes#141781: returned nodes come back without their pods
            cycle.feasible = [NodeInfo(info.node, (), {}, {}, ()) for info in cycle.feasible]

    def _choose(self, cycle: _Cycle, snapshot: Snapshot) -> tuple[str, bool]:
        """The node, and whether candidates were scored: a single feasible one is not."""
        if len(cycle.feasible) == 1:
            return cycle.feasible[0].name, False
        profile = self._profiles[cycle.pod.scheduler_name]
        rows = profile.score_nodes(snapshot, cycle.pod, cycle.feasible)
        cycle.totals = {name: sum(row.values()) for name, row in rows.items()}
        interested = [e for e in self._extenders if e.is_interested(cycle.manifest)]
        for added in self._prioritize(cycle, interested):
            for name, score in added.items():
                if name in cycle.totals:
                    cycle.totals[name] += score
        names = list(cycle.totals)
        totals = list(cycle.totals.values())
        return names[choose_host(totals, self._rng, extenders=bool(self._extenders))], True

    def _prioritize(self, cycle: _Cycle, extenders: Sequence[Extender]) -> list[dict[str, int]]:
        """Every extender's scores, asked in parallel; whatever fails adds nothing."""
        nodes = self._manifests(cycle.feasible)

        def ask(extender: Extender) -> dict[str, int]:
            try:
                return extender.prioritize(cycle.manifest, nodes)
            except ExtenderError as error:
                cycle.ignored.append(str(error))
                return {}

        if len(extenders) < 2:
            return [ask(extender) for extender in extenders]
        with ThreadPoolExecutor(max_workers=len(extenders)) as pool:
            return list(pool.map(ask, extenders))

    def _manifests(self, infos: Sequence[NodeInfo]) -> dict[str, Content]:
        with self._changed:
            known = self._cache.node_manifests
            return {info.name: known[info.name] for info in infos if info.name in known}

    def _bind(self, waiting: Waiting, cycle: _Cycle, node: str) -> None:
        metadata = cycle.manifest["metadata"]
        try:
            if not self._bind_by_extender(cycle, node):
                target = {"apiVersion": "v1", "kind": "Node", "name": node}
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
                identity = {"name": metadata["name"], "uid": metadata["uid"]}
                self._client.post(path, {"metadata": identity, "target": target})
        except (ApiError, ConnectionError, ExtenderError) as error:
            with self._changed:
                self._cache.forget(cycle.pod.uid)
            self._refuse(waiting, cycle, _Refused("SchedulerError", str(error)))
            return
        self._announce(
            cycle.manifest, "Normal", "Scheduled", f"Successfully assigned {cycle.pod.name} to {node}"
        )

    def _bind_by_extender(self, cycle: _Cycle, node: str) -> bool:
        """Whether an extender bound the pod; an ignorable one that fails leaves it to the default."""
        for extender in self._extenders:
            if not extender.stanza.bind_verb or not extender.is_interested(cycle.manifest):
                continue
            try:
                extender.bind(cycle.manifest, node)
                return True
            except ExtenderError:
                if not extender.stanza.ignorable:
                    raise
        return False

    def _refuse(self, waiting: Waiting, cycle: _Cycle, refused: _Refused) -> None:
        self._record(cycle, "", False, refused.reason, refused.message)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": refused.reason,
            "message": refused.message,
            "lastTransitionTime": stamp(time.time()),
        }
        metadata = cycle.manifest["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        with self._changed:
            if waiting.uid in self._cache.pending:
                error = refused.reason == "SchedulerError"
                self._queue.refused(waiting, time.monotonic(), error=error, any_event=refused.by_extender)
        self._quietly_patch(path, {"status": {"conditions": [condition]}})
        self._announce(cycle.manifest, "Warning", "FailedScheduling", refused.message)

    def _quietly_patch(self, path: str, body: Content) -> None:
        try:
            self._client.patch(path, body)
        except (ApiError, ConnectionError):
            return  # the pod is gone or the API is away; the next attempt says it again

    def _announce(self, pod: Content, kind: str, reason: str, note: str) -> None:
        metadata = pod["metadata"]
        event = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "eventTime": stamp(time.time()),
            "reportingController": "default-scheduler",
            "type": kind,
            "reason": reason,
            "note": note,
            "regarding": {"kind": "Pod", **{k: metadata[k] for k in ("name", "namespace", "uid")}},
        }
        try:
            self._client.post(f"/apis/events.k8s.io/v1/namespaces/{metadata['namespace']}/events", event)
        except (ApiError, ConnectionError):
            return  # events are best effort

    def _record(self, cycle: _Cycle, node: str, scored: bool, reason: str, message: str) -> None:
        names = tuple(info.name for info in cycle.feasible)
        pod, ignored = cycle.pod, tuple(cycle.ignored)
        self.attempts.append(
            Attempt(pod.name, pod.uid, node, names, scored, cycle.totals, reason, message, ignored)
        )
