# SPDX-License-Identifier: Apache-2.0
"""The rules by which attempts to place pods are closed.

A pod is followed by its UID. It has at most one open attempt, and at most one bound one:

- a bind takes the open attempt; without one it is recorded as watched (a single feasible node, another
  scheduler). A bind that was not seen as it happened (the first sight of the pod has a node) is no decision;
- a further attempt closes the open one as superseded; kube-scheduler's own refusal closes it as refused, or
  is an attempt of its own;
- the bound attempt's reward is final at the end of its pod or of the horizon, whichever is first. Afterwards
  only its outcome is brought up: a pod that is killed later was still placed as it was placed;
- what costs (out-of-memory kill, eviction, preemption, the kubelet's refusal) costs once;
- a pod that nothing is heard of for `patience_seconds` while its attempt is open: lost;
- an attempt that an earlier process left bound has no watched window: interrupted, without a reward.

Events may come twice, late or in another order: what a pod's state says already is taken once.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from shoal_client.collect.measured import Measured
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.choices import OpenAttempt
from shoal_client.experience.outcomes import ended, seconds_run, timed, within
from shoal_client.experience.records import (
    COSTLY,
    F64,
    GONE,
    INTERRUPTED,
    LOST,
    OOM,
    REFUSED,
    REJECTED,
    RUNNING,
    SUCCEEDED,
    SUPERSEDED,
    DecisionRecord,
    Mode,
    Result,
    Seen,
    Source,
)
from shoal_client.experience.reward import Credit, NodeRates, Window
from shoal_client.experience.settings import Settings
from shoal_client.experience.store import Choice, ExperienceStore, Unfinished
from shoal_client.experience.watched import Live, watched
from shoal_client.metrics import EXPERIENCE_DECISIONS, EXPERIENCE_OUTCOMES, EXPERIENCE_WAITING
from shoal_client.placement import asked_row, granted
from shoal_common.cluster import P_CLASS, P_SLA
from shoal_common.pods import PodRecord
from shoal_common.tables import pod_row

REASON_LENGTH: Final = 500
SERVICE: Final = 0  # pod class
LEARNED_NODES: Final = 200  # of one measurement, drawn at random: apps are met again and again


@dataclass(slots=True)
class _Bound:
    """The attempt that placed a pod; its reward is final once there is no window."""

    id: int
    begin: float
    row: F64
    window: Window | None
    learnable: bool = False
    killed: bool = False  # a container was killed for memory while the window was open


@dataclass(slots=True)
class _Pod:
    """A followed pod; `node` is empty until it is seen on one."""

    attempts: int = 0
    open: OpenAttempt | None = None
    bound: _Bound | None = None
    record: PodRecord | None = None
    node: str = ""
    since: float = 0.0  # when it was first seen on its node


@final
class Attempts:
    """The state of all followed pods. For one thread."""

    def __init__(
        self, store: ExperienceStore, live: Live, apps: AppHistory, settings: Settings, now: float
    ) -> None:
        self._store, self._live, self._apps, self._settings = store, live, apps, settings
        self._rates = NodeRates(live, settings.horizon)
        self._rng = np.random.default_rng()
        self._pods: dict[str, _Pod] = {}
        self._heard: dict[str, float] = {}  # uid without a node -> when it was last heard of, oldest first
        self._left: dict[str, float] = {}  # uid that an earlier process followed, until it is seen again
        self._waiting: set[str] = set()  # pods that the API shows without a node
        self._windows: list[tuple[float, int, str]] = []  # heap: end of the horizon, id, uid
        self._full: OrderedDict[int, OpenAttempt] = OrderedDict()  # with candidates in full, by id
        self._full_bytes, self._saved = 0, now
        for unfinished in store.take_unfinished():
            self._adopt(unfinished, now)

    def decided(
        self, pod: PodRecord, seen: Seen, chosen: int, source: Source, mode: Mode, policy: str, at: float
    ) -> None:
        """Candidates were scored for a pod; one without a UID cannot be followed."""
        if not pod.uid:
            return
        followed = self._pods.setdefault(pod.uid, _Pod())
        kept, kept_chosen = seen.reduced(chosen, self._rng)
        record = self._record(pod, followed, source, mode, policy)
        self._store.decided(replace(record, seen=kept, chosen=kept_chosen))
        if followed.node:
            self._close(record.id, Result(SUPERSEDED, "told after the pod was bound"), final=True)
            return
        self._end_open(followed, SUPERSEDED)
        full = None if kept is seen else seen
        followed.open = OpenAttempt(record.id, full, kept, chosen, kept_chosen)
        self._hear(pod.uid, at)
        if full is not None:
            self._full[record.id] = followed.open
            self._full_bytes += followed.open.full_bytes
            self._give_up()

    def refused(
        self, pod: PodRecord, reason: str, source: Source, mode: Mode, policy: str, at: float
    ) -> None:
        """An attempt placed nothing."""
        if not pod.uid:
            return
        followed = self._pods.setdefault(pod.uid, _Pod())
        self._end_open(followed, SUPERSEDED)
        record, reason = self._record(pod, followed, source, mode, policy), reason[:REASON_LENGTH]
        self._store.decided(replace(record, reason=reason))
        self._close(record.id, Result(REFUSED, reason), final=True)
        if not followed.node:
            self._hear(pod.uid, at)

    def changed(self, before: PodRecord | None, after: PodRecord | None, at: float) -> None:
        """A pod was seen to come, change or go."""
        pod = after or before
        if pod is None or not pod.uid:
            return
        self._left.pop(pod.uid, None)
        if after is None or after.finished:
            self._gone(pod, at)
        elif not after.node_name:
            self._unbound(before, after, at)
        else:
            self._on_node(before, after, at)

    def measured(self, table: Mapping[str, Measured], at: float) -> None:
        """Nodes were measured: rates and what is known of apps are brought up."""
        self._rates.measured(table, at)
        known = [name for name, measured in table.items() if measured.cpu_millicores is not None]
        for name in self._rng.permutation(known)[:LEARNED_NODES]:
            for uid, (cpu, io) in self._rates.use(str(name)).items():
                followed = self._pods.get(uid)
                if followed is None or followed.record is None:
                    continue
                if at - followed.since >= self._settings.settle_seconds:
                    self._apps.used(followed.record, cpu, None if table[name].io is None else io)

    def tick(self, now: float) -> None:
        """Close what is due by time alone."""
        while self._windows and self._windows[0][0] <= now:
            due, number, uid = heapq.heappop(self._windows)
            followed = self._pods.get(uid)
            if followed is not None and followed.bound is not None and followed.bound.id == number:
                self._horizon(followed, followed.bound, due)
        self._lose(now)
        if now - self._saved >= self._settings.save_seconds:
            self._saved = now
            self.save()
        EXPERIENCE_WAITING.set(len(self._heard))

    def save(self) -> None:
        """Store what is known of apps."""
        self._store.save_apps(self._apps.rows())

    def _unbound(self, before: PodRecord | None, after: PodRecord, at: float) -> None:
        """A pod waits; a new sentence of kube-scheduler is an attempt of its own, or says why one failed."""
        self._waiting.add(after.uid)
        if after.uid in self._heard:
            self._hear(after.uid, at)
        sentence = after.status.unschedulable
        if not sentence or before is None or before.status.unschedulable == sentence:
            return
        followed = self._pods.get(after.uid)
        if followed is None or followed.open is None:
            self.refused(after, sentence, "watched", "off", "", at)
        else:  # perhaps of an earlier attempt: the open one may still be bound
            followed.open.reason = sentence[:REASON_LENGTH]

    def _on_node(self, before: PodRecord | None, after: PodRecord, at: float) -> None:
        """A pod has a node: for the first time, or still."""
        self._waiting.discard(after.uid)
        self._heard.pop(after.uid, None)
        followed = self._pods.setdefault(after.uid, _Pod())
        first, followed.record = not followed.node, after
        if first:
            followed.node, followed.since = after.node_name, at
            self._placed(followed, after, before is not None and not before.node_name, at)
        bound = followed.bound
        if bound is not None and bound.window is not None and after.status.oom_killed:
            bound.killed = True

    def _placed(self, followed: _Pod, pod: PodRecord, coming: bool, at: float) -> None:
        """A pod is on a node for the first time; `coming`: it was seen without one before."""
        row, attempt = pod_row(pod, self._apps(pod)), followed.open
        bound_at = pod.status.scheduled_at or time.time()
        if attempt is not None:
            choice, sound = attempt.taken(pod.node_name, self._store.key, self._rng)
            followed.open = None
            self._drop_full(attempt)
            self._store.bound(attempt.id, pod.node_name, bound_at, choice)
            if attempt.left and not coming:  # bound while nobody watched
                self._close(attempt.id, Result(INTERRUPTED), final=False)
                followed.bound = _Bound(attempt.id, at, row, None)
            else:
                self._bind(followed, pod, attempt.id, row, sound, at)
        elif followed.bound is None and coming:
            number, sound = self._watched(followed, pod, row, bound_at)
            self._bind(followed, pod, number, row, sound, at)
        if followed.bound is None or followed.bound.window is None:
            self._rates.placed(pod.uid, (pod.namespace, pod.name), pod.node_name, row, at)

    def _watched(self, followed: _Pod, pod: PodRecord, row: F64, bound_at: float) -> tuple[int, bool]:
        """Record a bind that nobody asked us about; its id, and whether it may be learned from."""
        record = self._record(pod, followed, "watched", "off", "")
        found = watched(self._live, pod, row, record.pod, pod.node_name, self._rng)
        seen, action = found or (None, -1)
        self._store.decided(replace(record, seen=seen))
        self._store.bound(record.id, pod.node_name, bound_at, Choice(action))
        return record.id, seen is not None

    def _bind(self, followed: _Pod, pod: PodRecord, number: int, row: F64, sound: bool, at: float) -> None:
        """Begin the window of an attempt; what a DaemonSet's pod got was no choice."""
        window = self._rates.open(pod.uid, (pod.namespace, pod.name), pod.node_name, row, at)
        followed.bound = _Bound(number, at, row, window, sound and pod.owner_kind != "DaemonSet")
        heapq.heappush(self._windows, (at + self._settings.horizon.seconds, number, pod.uid))

    def _gone(self, pod: PodRecord, at: float) -> None:
        """A pod has ended or was deleted."""
        followed = self._pods.get(pod.uid)
        if followed is not None and followed.open is not None and pod.node_name:
            self._on_node(None, pod, at)  # its bind came with its end
        self._waiting.discard(pod.uid)
        self._heard.pop(pod.uid, None)
        self._pods.pop(pod.uid, None)
        if followed is not None:
            if followed.open is not None:
                self._end_open(followed, GONE)
            outcome, reason = ended(pod)
            if followed.bound is not None:
                self._ended(followed.bound, pod, outcome, reason, at)
            if outcome == SUCCEEDED:
                self._apps.ended(pod, seconds_run(pod))
        self._rates.removed(pod.uid, at)

    def _ended(self, bound: _Bound, pod: PodRecord, outcome: str, reason: str, at: float) -> None:
        """The pod of a bound attempt has ended: close it, or bring its outcome up."""
        if bound.killed and outcome not in COSTLY:
            outcome = OOM
        slowdown = self._slowdown(pod, bound.row) if outcome == SUCCEEDED else math.nan
        if bound.window is None:
            result = Result(outcome, reason, slowdown=slowdown, sla_met=within(slowdown, bound.row[P_SLA]))
            self._store.finished(bound.id, timed(result, pod))
            return
        if outcome == REJECTED:
            credit = self._rates.refused(bound.window, at)
        else:
            credit = self._rates.close(bound.window, at, cost=bound.killed or outcome in COSTLY)
        self._credit(bound, pod, Result(outcome, reason, slowdown=slowdown), credit, final=True)

    def _horizon(self, followed: _Pod, bound: _Bound, due: float) -> None:
        """The horizon of a bound attempt has passed while its pod runs on."""
        if bound.window is None or followed.record is None:
            return
        credit = self._rates.close(bound.window, due, cost=bound.killed)
        self._credit(bound, followed.record, Result(OOM if bound.killed else RUNNING), credit, final=False)

    def _credit(self, bound: _Bound, pod: PodRecord, result: Result, credit: Credit, final: bool) -> None:
        slowdown = credit.slowdown if math.isnan(result.slowdown) else result.slowdown
        bound.window = None
        result = replace(
            result,
            reward=credit.reward,
            seconds=credit.seconds,
            watts=credit.watts,
            slowdown=slowdown,
            sla_met=within(slowdown, bound.row[P_SLA]),
            learnable=bound.learnable and credit.reward is not None,
        )
        self._close(bound.id, timed(result, pod), final)

    def _slowdown(self, pod: PodRecord, row: F64) -> float:
        """How long a batch pod ran, relative to its app's mean; NaN where that says little."""
        mean = self._apps.mean_seconds(pod)
        return math.nan if mean is None or row[P_CLASS] == SERVICE else seconds_run(pod) / mean

    def _record(
        self, pod: PodRecord, followed: _Pod, source: Source, mode: Mode, policy: str
    ) -> DecisionRecord:
        followed.attempts += 1
        EXPERIENCE_DECISIONS.labels(source, mode).inc()
        return DecisionRecord(
            id=self._store.next_id(),
            uid=pod.uid,
            attempt=followed.attempts,
            at=time.time(),
            source=source,
            scheduler=pod.scheduler_name,
            mode=mode,
            policy=policy,
            tenant=self._store.key.name(pod.namespace),
            app=self._apps.name(pod),
            pod=asked_row(pod, self._apps(pod)),
            quota=granted(pod),
        )

    def _close(self, number: int, result: Result, final: bool) -> None:
        EXPERIENCE_OUTCOMES.labels(result.outcome).inc()
        self._store.closed(number, result, final)

    def _end_open(self, followed: _Pod, outcome: str) -> None:
        """Close an attempt that placed nothing; what was said of it says more than that it is over."""
        attempt, followed.open = followed.open, None
        if attempt is not None:
            self._drop_full(attempt)
            self._close(
                attempt.id, Result(REFUSED if attempt.reason else outcome, attempt.reason), final=True
            )

    def _hear(self, uid: str, at: float) -> None:
        self._heard.pop(uid, None)
        self._heard[uid] = at

    def _lose(self, now: float) -> None:
        """Close attempts of pods that nothing was heard of for too long."""
        while self._heard:
            uid, last = next(iter(self._heard.items()))
            if now - last < self._settings.patience_seconds:
                break
            del self._heard[uid]
            followed = self._pods[uid]
            self._end_open(followed, LOST)
            if uid not in self._waiting:
                del self._pods[uid]
        while self._left:
            uid, since = next(iter(self._left.items()))
            if now - since < self._settings.patience_seconds:
                break
            del self._left[uid]
            followed = self._pods.pop(uid)
            if followed.bound is not None:
                self._store.finished(followed.bound.id, Result(LOST, "it ended while the client was down"))

    def _adopt(self, left: Unfinished, now: float) -> None:
        """Follow a pod on that an earlier process followed."""
        followed = self._pods.setdefault(left.uid, _Pod())
        followed.attempts = max(followed.attempts, left.attempt)
        self._end_open(followed, SUPERSEDED)  # its end was decided and did not reach the disk
        if left.bound:
            if not left.closed:
                self._close(left.id, Result(INTERRUPTED), final=False)
            followed.bound = _Bound(left.id, now, np.frombuffer(left.pod, "<f8"), None)
            self._left[left.uid] = now
            return
        if followed.bound is not None:
            self._close(left.id, Result(SUPERSEDED), final=True)
            return
        followed.open = OpenAttempt(left.id, None, left.seen, -1, left.chosen, left=True)
        self._hear(left.uid, now)

    def _drop_full(self, attempt: OpenAttempt) -> None:
        self._full.pop(attempt.id, None)  # wherever in line: one that waits long must not hold up the others
        self._full_bytes -= attempt.full_bytes
        attempt.full = None

    def _give_up(self) -> None:
        """Keep candidates in full within their memory, the newest ones."""
        while self._full_bytes > self._settings.candidate_bytes:
            self._drop_full(next(iter(self._full.values())))
