# SPDX-License-Identifier: Apache-2.0
"""From decisions and what is seen of their pods to closed transitions.

Two streams meet here: what was decided (`decided`, `refused`, from whoever serves decisions) and what the API
shows of pods (`pod_changed`), with the nodes' measurements (`measured`). Calls copy what they need, put it in
line and return; one thread takes the line in order, so there is one order of events and no lock. What it
makes of them is in `attempts`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from shoal_client.collect.measured import Measured
from shoal_client.experience import reward, watched
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.attempts import Attempts
from shoal_client.experience.choices import size
from shoal_client.experience.records import F32, Mode, Seen, Source
from shoal_client.experience.settings import Settings
from shoal_client.experience.store import ExperienceStore
from shoal_client.experience.watched import Live
from shoal_client.metrics import EXPERIENCE_DROPPED, EXPERIENCE_ERRORS
from shoal_client.state.changes import PodChange
from shoal_common.observation import Observation
from shoal_common.pods import PodRecord

WAITING_BYTES: Final = 64 * 2**20  # of candidates in line; a decision beyond it is dropped and counted
REFUSAL_BYTES: Final = 1_024  # what a refusal is taken to weigh
TICK_SECONDS: Final = 1.0

_log = logging.getLogger("shoal.client.experience")


@final
class Recorder:
    """Records the experience of one cluster. Every method may be called from any thread, none blocks."""

    def __init__(
        self,
        store: ExperienceStore,
        live: Live,
        apps: AppHistory,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Record into `store` (running) what becomes of the pods of `live`; `clock` is monotonic."""
        self._store, self._clock = store, clock
        self._attempts = Attempts(store, live, apps, settings or Settings(), clock())
        self._line: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._weighing, self._bytes = threading.Lock(), 0
        self._thread = threading.Thread(target=self._run, name="experience", daemon=True)

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread. What it would compile at its first event is compiled before, by the caller."""
        reward.compile_kernels()
        watched.compile_kernels()
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Take what is in line, then end. The store is stopped by its owner, after this."""
        self._line.put(None)
        self._thread.join(timeout)

    def decided(
        self,
        pod: PodRecord,
        observation: Observation,
        names: Sequence[str],
        *,
        chosen: int,
        source: Source,
        mode: Mode,
        policy: str,
        logits: F32 | None = None,
        propensities: F32 | None = None,
    ) -> None:
        """Candidates were scored: call it once an attempt (in prioritize, not in filter as well).

        `observation` has B = 1 and N candidates, `names` their nodes; `chosen` is the flat candidate
        n * P + p that the policy prefers, -1 where it abstained. `logits` are its scores [N, P].
        `propensities` [N, P] are the probabilities with which the *cluster* would take each candidate: give
        them only where the policy's choice is what the scheduler does (active or canary, and a weight that
        dominates); None in shadow mode, where they are not known.

        Call it before the answer leaves, or the bind may be seen first.
        """
        at = self._clock()
        seen = Seen.of(observation, names, logits, propensities)
        self._put(
            size(seen),
            lambda: self._attempts.decided(pod, seen, chosen, source, mode, policy, at),
        )

    def refused(self, pod: PodRecord, reason: str, *, source: Source, mode: Mode, policy: str) -> None:
        """An attempt placed nothing, and why: all masked, a deadline, a policy that cannot run."""
        at = self._clock()
        self._put(REFUSAL_BYTES, lambda: self._attempts.refused(pod, reason, source, mode, policy, at))

    def pod_changed(self, change: PodChange) -> None:
        """An event of the watch, in the order of the watch (`LiveCluster.subscribe`)."""
        self._line.put(lambda: self._attempts.changed(change.before, change.after, change.at_monotonic))

    def measured(self, table: Mapping[str, Measured]) -> None:
        """What was measured on nodes, by name; a node that it lacks is not known."""
        at = self._clock()
        self._line.put(lambda: self._attempts.measured(table, at))

    def flush(self, timeout: float) -> bool:
        """Wait until all calls so far are on disk; False where they are not by then."""
        taken = threading.Event()
        until = time.monotonic() + timeout
        self._line.put(taken.set)
        return taken.wait(timeout) and self._store.flush(max(0.0, until - time.monotonic()))

    def _put(self, weight: int, event: Callable[[], None]) -> None:
        """Put what is decided in line, unless the line holds too much."""
        with self._weighing:
            if self._bytes + weight > WAITING_BYTES:
                EXPERIENCE_DROPPED.labels("recorder").inc()
                return
            self._bytes += weight

        def taken() -> None:
            with self._weighing:
                self._bytes -= weight
            event()

        self._line.put(taken)

    def _run(self) -> None:
        due = self._clock() + TICK_SECONDS
        while True:
            try:
                event = self._line.get(timeout=max(0.0, due - self._clock()))
            except queue.Empty:
                event = self._tick
            if event is None:
                self._take(self._attempts.save)
                return
            self._take(event)
            if self._clock() >= due:
                due = self._clock() + TICK_SECONDS
                self._take(self._tick)

    def _tick(self) -> None:
        self._attempts.tick(self._clock())

    def _take(self, event: Callable[[], None]) -> None:
        """Take one event up; one that cannot be must not end the recording."""
        try:
            event()
        except Exception:
            EXPERIENCE_ERRORS.inc()
            _log.exception("an event of the experience cannot be taken up")
