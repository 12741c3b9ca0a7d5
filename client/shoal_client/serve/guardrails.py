# SPDX-License-Identifier: Apache-2.0
"""Rollback by itself: the pods that a policy was served to against those that it only shadowed.

Four figures of a policy's served pods within its window (how long they waited, attempts that failed, pods
evicted or killed, pods over their SLA) are held against the same figures of its shadow pods, the latest of
any age. One that is more than the policy's multiple of the baseline takes it back to Shadow. A baseline of
nothing would make any incident a regression, so each figure has a floor. Durations are monotonic, from when a
pod was first seen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, final

import numpy as np

from shoal_client.metrics import CHOICES_BOUND, ROLLBACKS
from shoal_client.periodic import Periodic
from shoal_client.policies.registry import AppliedPolicy, Policies
from shoal_client.policies.spec import Guardrails as Limits
from shoal_client.policies.spec import Mode
from shoal_client.serve.guard import Plan, Reason
from shoal_client.state.changes import PodChange
from shoal_common.cluster import P_DURATION, P_SLA
from shoal_common.pods import PodRecord
from shoal_common.tables import App, pod_row

CHECK_SECONDS = 5.0
BASELINE_SAMPLES = 2_000
TRACKED = 20_000  # pods; the oldest are forgotten first
FLOORS = {"pending_seconds": 1.0, "failed_scheduling": 0.05, "evictions": 0.02, "sla_violations": 0.02}
"""What a figure of the baseline counts at least: seconds, and shares of pods."""

Kept = TypeVar("Kept")

_log = logging.getLogger("shoal.client.serve")


@dataclass(slots=True)
class _Track:
    """A pod from when it was first seen waiting."""

    policy: str
    served: bool
    seen: float
    failures: int = 0
    bound: bool = False
    disrupted: bool = False


@dataclass(slots=True)
class Cohort:
    """Samples of one policy's pods, (when, value) each, the latest `BASELINE_SAMPLES`."""

    waits: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BASELINE_SAMPLES))
    failures: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BASELINE_SAMPLES))
    disruptions: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BASELINE_SAMPLES))
    late: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BASELINE_SAMPLES))

    def figures(self, since: float, waiting: Iterable[float], failing: float) -> tuple[int, dict[str, float]]:
        """How many pods there were since then, and the figures; `waiting` pods count with their age."""
        waits = [value for at, value in self.waits if at >= since] + list(waiting)
        pods = len(waits)
        return pods, {
            "pending_seconds": float(np.percentile(waits, 99)) if waits else 0.0,
            "failed_scheduling": (_sum(self.failures, since) + failing) / max(pods, 1),
            "evictions": _sum(self.disruptions, since) / max(pods, 1),
            "sla_violations": _mean([value for at, value in self.late if at >= since]),
        }


@final
class Guardrails:
    """Watches decisions and pods; `check` decides. Thread-safe."""

    def __init__(
        self,
        policies: Policies,
        namespace_labels: Callable[[str], Mapping[str, str]],
        apps: Callable[[PodRecord], App | None],
        roll_back: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`roll_back(policy, reason)` takes a policy back and tells the operator."""
        self._policies, self._labels, self._apps = policies, namespace_labels, apps
        self._roll_back, self._clock = roll_back, clock
        self._tracks: OrderedDict[str, _Track] = OrderedDict()
        self._choices: OrderedDict[str, tuple[str, frozenset[str]]] = OrderedDict()
        self._served: dict[str, Cohort] = {}
        self._shadow: dict[str, Cohort] = {}
        self._mutex = threading.Lock()
        self._checking = Periodic("guardrails", self.check, CHECK_SECONDS)

    def start(self) -> None:
        """Check every few seconds from a thread of its own."""
        self._checking.start()

    def stop(self) -> None:
        """End the thread."""
        self._checking.stop()

    def decided(self, pod: PodRecord, plan: Plan, nodes: Sequence[str]) -> None:
        """The policy would take one of these nodes; compared with where the pod is bound."""
        with self._mutex:
            _put(self._choices, pod.uid, (plan.recorded_mode, frozenset(nodes)))

    def doubtful(self, plan: Plan, reason: Reason) -> None:
        """The policy gave something that is no number: it is taken back at once."""
        if plan.serves and plan.applied is not None:
            self._take_back(plan.applied.name, reason, "the policy's scores are not finite")

    def pod_changed(self, change: PodChange) -> None:
        """An event of the watch, in order."""
        before, after, at = change.before, change.after, change.at_monotonic
        pod = after or before
        if pod is None:
            return
        with self._mutex:
            track = self._tracks.get(pod.uid) or self._begin(before, after, at)
            if after is not None and after.node_name and not (before and before.node_name):
                self._compare(after)
            if track is not None:
                self._follow(track, before, after, at)

    def sla_violations(self, window_seconds: float = 600.0) -> float | None:
        """Share of the pods that ended within the window that were over their SLA; None where none ended."""
        since = self._clock() - window_seconds
        with self._mutex:
            cohorts = [*self._served.values(), *self._shadow.values()]
            late = [value for cohort in cohorts for at, value in cohort.late if at >= since]
        return _mean(late) if late else None

    def check(self) -> None:
        """Hold every served policy's figures against its baseline, and take back what is worse."""
        for name, entry in self._policies.entries().items():
            applied = entry.applied
            if applied is None or applied.mode not in (Mode.CANARY, Mode.ACTIVE):
                continue
            verdict = self._judge(name, applied)
            if verdict is not None:
                self._take_back(name, *verdict)

    def _judge(self, name: str, applied: AppliedPolicy) -> tuple[str, str] | None:
        """The guardrail that is broken and the sentence that says how, None where none is."""
        limits, now = applied.spec.guardrails, self._clock()
        if not limits.enabled:
            return None
        with self._mutex:
            waiting = [t for t in self._tracks.values() if t.policy == name and t.served and not t.bound]
            ages, failing = [now - t.seen for t in waiting], float(sum(t.failures for t in waiting))
            served, shadow = (table.setdefault(name, Cohort()) for table in (self._served, self._shadow))
            pods, figures = served.figures(now - limits.window_seconds, ages, failing)
            before, baseline = shadow.figures(-np.inf, (), 0.0)
        if pods < limits.min_pods or before < limits.min_pods:
            return None
        return _broken(limits, figures, baseline)

    def _begin(self, before: PodRecord | None, after: PodRecord | None, at: float) -> _Track | None:
        """Follow a pod that waits for a node; one that was bound before it was seen tells nothing."""
        if after is None or after.node_name or (before is not None and before.node_name):
            return None
        applied = self._policies.for_pod(after, self._labels(after.namespace))
        if applied is None or not applied.name or applied.mode is Mode.OFF:
            return None
        track = _Track(applied.name, applied.serves(after), at)
        _put(self._tracks, after.uid, track)
        return track

    def _follow(self, track: _Track, before: PodRecord | None, after: PodRecord | None, at: float) -> None:
        cohort = (self._served if track.served else self._shadow).setdefault(track.policy, Cohort())
        pod = after or before
        assert pod is not None  # noqa: S101
        if after is not None and after.status.unschedulable_at > (
            before.status.unschedulable_at if before else 0.0
        ):
            track.failures += 1
        if after is not None and after.node_name and not track.bound:
            track.bound = True
            cohort.waits.append((at, at - track.seen))
            cohort.failures.append((at, float(track.failures)))
        if after is not None and not track.disrupted and _disrupted(after):
            track.disrupted = True
            cohort.disruptions.append((at, 1.0))
        if after is None or after.finished:
            if track.bound and after is not None:
                self._ended(cohort, track, pod, at)
            self._tracks.pop(pod.uid, None)

    def _ended(self, cohort: Cohort, track: _Track, pod: PodRecord, at: float) -> None:
        """Whether a pod that ran to its end took longer than its SLA allows; unknown apps have none."""
        app = self._apps(pod)
        if app is None or app.duration_seconds is None:
            return
        row = pod_row(pod, app)
        cohort.late.append((at, float(at - track.seen > row[P_SLA] * row[P_DURATION])))

    def _compare(self, pod: PodRecord) -> None:
        mode, nodes = self._choices.pop(pod.uid, ("", frozenset()))
        if mode:
            CHOICES_BOUND.labels(mode, "yes" if pod.node_name in nodes else "no").inc()

    def _take_back(self, name: str, guardrail: str, sentence: str) -> None:
        _log.warning("policy %s is rolled back: %s", name or "(default)", sentence)
        ROLLBACKS.labels(guardrail).inc()
        with self._mutex:
            self._served.pop(name, None)
            for uid in [uid for uid, track in self._tracks.items() if track.policy == name and track.served]:
                del self._tracks[uid]
        self._roll_back(name, sentence)


def _broken(
    limits: Limits, figures: Mapping[str, float], baseline: Mapping[str, float]
) -> tuple[str, str] | None:
    for name, floor in FLOORS.items():
        multiple, usual = getattr(limits, name), max(baseline[name], floor)
        if figures[name] > multiple * usual:
            return name, f"{name} is {figures[name]:.3g}, more than {multiple:g} times {usual:.3g} in shadow"
    return None


def _disrupted(pod: PodRecord) -> bool:
    return bool(pod.status.disruption) or pod.status.oom_killed or pod.status.reason == "Evicted"


def _put(table: OrderedDict[str, Kept], uid: str, value: Kept) -> None:
    table[uid] = value
    if len(table) > TRACKED:
        table.popitem(last=False)


def _sum(samples: Iterable[tuple[float, float]], since: float) -> float:
    return sum(value for at, value in samples if at >= since)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
