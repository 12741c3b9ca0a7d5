# SPDX-License-Identifier: Apache-2.0
"""Leader election over a `coordination.k8s.io/v1` Lease, by observed time.

Semantics of client-go's tools/leaderelection. A holder's lease counts as expired when its record has not
changed for the record's own duration on *our* monotonic clock since we saw it change; its `renewTime` is
never compared with a wall clock. Every write carries the resourceVersion that was read, so of two
candidates one gets a conflict.

Where we differ: `is_leader` is also judged by the clock at the moment it is asked. A holder whose renewals
hang stops being leader `renew_seconds` after the *start* of its last good renewal, even while the call that
should tell it so is still waiting; that leaves `duration_seconds - renew_seconds` before another may take
over. And a candidate that actuates takes the lease from a holder that does not, which sees it in its next
round: a process with the permissions for it leads wherever there is one.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_client.kube.api import LEASES, Api, Conflict, NotFound
from shoal_client.kube.resources import micro_time
from shoal_client.metrics import BACKGROUND_ERRORS, LEADER
from shoal_common.errors import ShoalError

_log = logging.getLogger("shoal.client.actuate")

ACTUATES = "shoal.dev/actuates"
JITTER = 1.2
"""A candidate waits up to so many retry periods, that candidates do not march in step (client-go)."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Which lease, under which identity, and its times in seconds (client-go's defaults)."""

    name: str
    namespace: str
    identity: str
    duration_seconds: int = 15
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
    actuates: bool = False  # whether this process would take gates off pods; written on the lease


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lease's spec as last read, and when it was first read in that form (monotonic)."""

    spec: Mapping[str, Any]
    since: float
    actuates: bool = False

    @property
    def holder(self) -> str:
        return self.spec.get("holderIdentity") or ""

    def valid(self, now: float) -> bool:
        """Whether its holder still holds it, as far as we can tell."""
        return bool(self.holder) and now < self.since + (self.spec.get("leaseDurationSeconds") or 0)


class Leader:
    """A candidate for one lease. Thread-safe; runs in its own thread between `start` and `stop`."""

    def __init__(
        self, api: Api, settings: LeaseSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._seen = _Seen({}, clock())
        self._renewed = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to stand for election."""
        self._thread = threading.Thread(target=self._run, name="leader-election", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop standing and give the lease back, so that another need not wait for it to expire."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._settings.renew_seconds)
        if self.is_leader():
            self._renewed = float("-inf")
            self._release()
        LEADER.set(0)

    def is_leader(self) -> bool:
        """Whether we may act now; ask right before each write."""
        return self._clock() < self._renewed + self._settings.renew_seconds

    def is_led(self) -> bool:
        """Whether anybody who takes gates off pods holds the lease, as far as we can see."""
        return self._seen.actuates and (self.is_leader() or self._seen.valid(self._clock()))

    def try_acquire_or_renew(self) -> bool:
        """One round: read, and write when the lease is ours, free or expired. True when it is ours after."""
        began = self._clock()
        try:
            current = self._api.get(LEASES, self._settings.name, self._settings.namespace)
        except NotFound:
            held = self._create()
        else:
            held = self._observe(current) and self._take(current)
        if held:
            self._renewed = began
        return held

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                held = self.try_acquire_or_renew()
            except ShoalError:
                held = self.is_leader()  # a failed renewal is not yet a lost lease; the clock decides
            except Exception:  # without this thread nobody here would ever lead again
                BACKGROUND_ERRORS.labels("leader-election").inc()
                _log.exception("a round of the election failed")
                held = self.is_leader()
            LEADER.set(held)
            spread = 1.0 if held else random.uniform(1.0, JITTER)
            self._stop.wait(self._settings.retry_seconds * spread)

    def _observe(self, lease: Mapping[str, Any]) -> bool:
        """Note what was read; whether we may write: it is ours, nobody's, or of one who cannot actuate."""
        spec, now = lease.get("spec") or {}, self._clock()
        if spec != self._seen.spec:
            notes = lease["metadata"].get("annotations") or {}
            self._seen = _Seen(spec, now, notes.get(ACTUATES) == "true")
        if self._seen.holder != self._settings.identity:
            self._renewed = float("-inf")  # taken from us: stop acting at once
        outranked = self._settings.actuates and not self._seen.actuates
        return self._seen.holder == self._settings.identity or outranked or not self._seen.valid(now)

    def _create(self) -> bool:
        settings, now = self._settings, micro_time()
        spec = self._spec(now, now, 0)
        metadata = {"name": settings.name, "namespace": settings.namespace, "annotations": self._notes()}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        try:
            self._observe(self._api.create(LEASES, body, settings.namespace))
        except Conflict:
            return False
        return True

    def _take(self, lease: Mapping[str, Any]) -> bool:
        ours, spec, now = self._seen.holder == self._settings.identity, self._seen.spec, micro_time()
        acquired = spec.get("acquireTime") if ours else now
        transitions = int(spec.get("leaseTransitions") or 0) + (not ours)
        return self._write(lease, self._spec(acquired, now, transitions))

    def _spec(self, acquired: str | None, renewed: str, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": self._settings.duration_seconds,
            "acquireTime": acquired or renewed,
            "renewTime": renewed,
            "leaseTransitions": transitions,
        }

    def _notes(self) -> dict[str, str]:
        return {ACTUATES: "true" if self._settings.actuates else "false"}

    def _write(self, lease: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "annotations": self._notes()}, "spec": spec}
        settings = self._settings
        try:
            self._observe(self._api.patch(LEASES, settings.name, body, settings.namespace))
        except (Conflict, NotFound):
            return False
        return True

    def _release(self) -> None:
        """Best effort: an unreleased lease only expires later."""
        settings = self._settings
        try:
            lease = self._api.get(LEASES, settings.name, settings.namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == settings.identity:
                self._write(
                    lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time()}
                )
        except ShoalError:
            return
