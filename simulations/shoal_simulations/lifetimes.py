# SPDX-License-Identifier: Apache-2.0
"""The online replay: pods arrive at their creation times, run for their durations and leave.

The published openb experiment has no time in it; this one is our own. A pod that fits nowhere waits; whenever
pods have left, the waiting ones are tried again in their order, and one that fits does not wait for those
before it. Means over time run from the first to the last arrival; then the cluster is left to drain.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal_common.errors import InputError
from shoal_common.scorers import fgd
from shoal_simulations.openb import Chooser, Cluster
from shoal_simulations.traces.base import PodTrace

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Online:
    """Outcome of an online replay: percentages over time, waits of the pods that started (seconds)."""

    gpu_allocation: float  # % of the cluster's milli-GPU, mean over time
    gpu_allocation_peak: float
    cpu_allocation: float  # % of the cluster's milli-CPU, mean over time
    fragmentation: float  # % of the cluster's milli-GPU, mean over time
    pending: float  # pods waiting, mean over time
    waits_s: F64
    never_started: int
    span_s: float
    seconds: float


class _Clock:
    """Integrates the state of the cluster over time up to a horizon."""

    def __init__(self, cluster: Cluster, begin: float, end: float) -> None:
        self.nodes, self.now, self.end = cluster.state.nodes, begin, end
        self.totals = np.array([cluster.total_gpu_milli, self.nodes.cpu_left.sum(), cluster.total_gpu_milli])
        self.sums, self.pending, self.peak = np.zeros(3), 0.0, 0.0

    def advance(self, now: float, waiting: int) -> None:
        """Account for the state that held since the last call."""
        elapsed = max(0.0, min(now, self.end) - self.now)
        if elapsed > 0:
            free = [self.nodes.gpu_left.sum(), self.nodes.cpu_left.sum()]
            used = np.array([*(self.totals[:2] - free), self.nodes.fragmentation.sum()])
            self.sums += elapsed * used
            self.pending += elapsed * waiting
            self.peak = max(self.peak, float(used[0]))
        self.now = max(self.now, now)


class _Run:
    """The event loop's state: what runs until when, what waits, when each pod started."""

    def __init__(self, cluster: Cluster, pods: PodTrace, choose: Chooser) -> None:
        self.cluster, self.choose = cluster, choose
        self.arrival, self.duration = pods.arrival_s.tolist(), pods.duration_s.tolist()
        self.spec = cluster.spec_of_pod.tolist()
        self.running: list[tuple[float, int, int, int]] = []  # (end, pod, node, devices)
        self.waiting: list[int] = []
        self.start = np.full(len(pods), np.nan)

    def try_start(self, pod: int, now: float) -> bool:
        """Start a pod if it fits somewhere."""
        s = self.spec[pod]
        node, devices = self.choose(s)
        if node < 0:
            return False
        fgd.place(self.cluster.state, s, node, devices)
        heapq.heappush(self.running, (now + self.duration[pod], pod, node, devices))
        self.start[pod] = now
        return True

    def finish(self, now: float) -> None:
        """Let every pod leave whose time has come, then try the waiting ones."""
        while self.running and self.running[0][0] <= now:
            _, pod, node, devices = heapq.heappop(self.running)
            fgd.remove(self.cluster.state, self.spec[pod], node, devices)
        self.retry(now)

    def retry(self, now: float) -> None:
        """Try the waiting pods in their order; a specification that fails now is not tried again now."""
        failed: set[int] = set()
        still = []
        for pod in self.waiting:
            if self.spec[pod] in failed or not self.try_start(pod, now):
                failed.add(self.spec[pod])
                still.append(pod)
        self.waiting = still


def run_online(cluster: Cluster, pods: PodTrace, choose: Chooser) -> Online:
    """Replay a timed pod list with lifetimes. Changes the cluster.

    Raises:
        InputError: the list has no times.
    """
    if not pods.timed or bool(np.isnan(pods.duration_s).any()):
        raise InputError(
            "--lifetimes",
            "creation_time",
            "this pod list has no times",
            "use a list that has, such as default",
        )
    began = time.perf_counter()
    order = np.argsort(pods.arrival_s, kind="stable").tolist()
    run = _Run(cluster, pods, choose)
    clock = _Clock(cluster, run.arrival[order[0]], run.arrival[order[-1]])
    for pod in order:
        now = run.arrival[pod]
        _drain(run, clock, now)
        clock.advance(now, len(run.waiting))
        if not run.try_start(pod, now):
            run.waiting.append(pod)
    _drain(run, clock, np.inf)
    return _online(run, clock, time.perf_counter() - began)


def _drain(run: _Run, clock: _Clock, until: float) -> None:
    """Process every departure up to a time."""
    while run.running and run.running[0][0] <= until:
        end = run.running[0][0]
        clock.advance(end, len(run.waiting))
        run.finish(end)


def _online(run: _Run, clock: _Clock, seconds: float) -> Online:
    span = clock.end - min(run.arrival)
    share = 100 * clock.sums / np.maximum(clock.totals, 1) / max(span, 1e-9)
    waits = run.start - np.array(run.arrival)
    return Online(
        gpu_allocation=float(share[0]),
        gpu_allocation_peak=100 * clock.peak / max(float(clock.totals[0]), 1.0),
        cpu_allocation=float(share[1]),
        fragmentation=float(share[2]),
        pending=clock.pending / max(span, 1e-9),
        waits_s=waits[~np.isnan(waits)],
        never_started=int(np.isnan(waits).sum()),
        span_s=span,
        seconds=seconds,
    )
