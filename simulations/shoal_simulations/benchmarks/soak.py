# SPDX-License-Identifier: Apache-2.0
"""A day of a live client in minutes: is memory bounded, is every decision kept, is the state the truth?

The informer's state, the deciding service with a policy and the experience recorder are the real ones; the
API's events come from `churn` on a virtual clock, through none of HTTP. Decisions are taken one by one, and
each is counted by who asked for it and by what the store holds afterwards. A second part throws random
events at the state and compares it with one that is built from scratch.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from shoal_client.collect.measured import Measured
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.recorder import Recorder
from shoal_client.experience.store import ExperienceStore, StoreConfig
from shoal_client.policies.registry import Policies
from shoal_client.policies.spec import API_VERSION, POLICY_KIND
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.decider import Decider
from shoal_client.serve.guard import Guard
from shoal_client.serve.payloads import Candidates
from shoal_client.serve.service import DecisionService
from shoal_client.state.live import LiveCluster
from shoal_common.errors import Transient
from shoal_simulations.benchmarks.churn import Churn, ChurnConfig, Object
from shoal_simulations.benchmarks.extender import untrained
from shoal_simulations.benchmarks.memory import resident_bytes
from shoal_simulations.live_events import compare_with_scratch

CANDIDATES = 100  # node names of one request
MEASURE_SECONDS = 300.0
RELIST_SECONDS = 3_600.0
WARM_HOURS = 6.0
"""Until memory is what it stays: templates, apps and the store's caches have filled."""
HORIZON_HOURS = 2.0
"""Run on without arrivals counting until every decision is closed."""
MOST_MB_PER_HOUR = 0.5
ACTIVE: Object = {
    "apiVersion": API_VERSION,
    "kind": POLICY_KIND,
    "metadata": {"name": "soak", "uid": "soak", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"mode": "Active", "fallback": {"timeoutMs": 5000, "maxStalenessSeconds": 3600}},
}
"""A busy machine must not change what is decided."""


@final
class Client:
    """The parts of a live client that keep something, on a virtual clock."""

    def __init__(self, directory: Path, config: ChurnConfig, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._churn: Churn | None = None
        self.live = LiveCluster(clock=self._clock)
        bounds = StoreConfig(capacity=10_000_000, tenant_cap=10_000_000)
        self.store = ExperienceStore(directory / "experience", bounds)
        apps = AppHistory(self.store.key)
        self.live.apps = apps
        self.recorder = Recorder(self.store, self.live, apps, clock=self._clock)
        self.live.subscribe(self.recorder.pod_changed)
        policies = Policies()
        policies.set(ACTIVE)
        policies.mark_synced()
        artifact = ArtifactFile(untrained(directory))
        decider = Decider(self.live, artifact, seed)
        self.service = DecisionService(self.live, decider, Guard(policies, self.live), self.recorder)
        self.live.replace("Node", ())
        self.live.replace("Pod", ())
        self._churn = self.churn = Churn(config, self._apply, self._decide, seed)
        self.fallbacks: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._running = ExitStack()
        self._running.enter_context(self.store)
        self._running.enter_context(self.recorder)
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()
        self._running.close()

    def _clock(self) -> float:
        return 0.0 if self._churn is None else self._churn.now

    def _apply(self, kind: str, event: str, content: Object) -> None:
        self.live.apply("Node" if kind == "Node" else "Pod", event, content)

    def _decide(self, content: Object) -> str:
        """Ask the service as kube-scheduler does, and take the best score, ties at random."""
        record = self.live.pods[content["metadata"]["uid"]]
        start = int(self._rng.integers(len(self.churn.nodes)))
        names = list(self.churn.nodes)
        asked = [names[(start + i) % len(names)] for i in range(min(CANDIDATES, len(names)))]
        fitting = [name for name in asked if not self.live.insufficient(name, record)]
        if not fitting:
            return ""
        answer = self.service.prioritize(Candidates(record, fitting)).wait()
        if answer.reason is not None:
            self.fallbacks[answer.reason] += 1
        best = np.flatnonzero(np.asarray(answer.scores) == max(answer.scores))
        return fitting[int(self._rng.choice(best))]

    def measure(self) -> None:
        """Every node's measurements, as a collector would bring them."""
        table: Mapping[str, Measured] = {
            name: Measured(
                cpu_millicores=float(1_000 * cpu), memory_bytes=float(2**30 * memory), watts=float(watts)
            )
            for name, (cpu, memory, watts) in zip(
                self.churn.nodes,
                self._rng.integers(0, (16, 64, 300), (len(self.churn.nodes), 3)),
                strict=True,
            )
        }
        self.live.measure(table)
        self.recorder.measured(table)

    def settle(self) -> None:
        """Wait until all that was recorded is on disk.

        Raises:
            Transient: the disk takes longer than a minute.
        """
        if not self.recorder.flush(60.0):
            raise Transient("the experience store does not get its decisions to disk")

    def relist(self) -> None:
        """A watch had expired: whole lists again."""
        self.live.replace("Node", list(self.churn.nodes.values()))
        self.live.replace("Pod", list(self.churn.pods.values()))

    def untrue(self) -> int:
        """How many records differ from those of a state that begins with what is there now."""
        scratch = LiveCluster()
        scratch.replace("Node", list(self.churn.nodes.values()))
        scratch.replace("Pod", list(self.churn.pods.values()))
        pairs = ((self.live.nodes, scratch.nodes), (self.live.pods, scratch.pods))
        return sum(a.get(key) != b.get(key) for a, b in pairs for key in a.keys() | b.keys())


def run(quick: bool = False) -> dict[str, Any]:
    """A day at 1,000 nodes and 1e6 random events; `quick` has a 25th of the pods and a 20th of the events."""
    config = ChurnConfig(pods_per_second=0.02) if quick else ChurnConfig(pods_per_second=0.5)
    day = soak(config)
    events = compare_with_scratch(50_000 if quick else 1_000_000)
    kept = day["lost"] == 0 and day["untrue"] == 0 and events["differ"] == 0
    holds = kept and abs(day["memory_mb_per_hour"]) <= MOST_MB_PER_HOUR
    return {"quick": quick, "day": day, "random_events": events, "holds": holds}


def soak(config: ChurnConfig, seed: int = 0) -> dict[str, Any]:
    """Live through `config.hours` of churn: memory by the hour, decisions made, kept and lost."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Client(Path(folder), config, seed) as client:
        hours, memory = _live_through(client, config.hours * 3_600)
        made = client.churn.decided
        for _ in client.churn.run((config.hours + HORIZON_HOURS) * 3_600):
            pass
        client.settle()
        outcomes, extender = Counter[str](), 0
        with ExperienceReader(client.store.path.parent) as reader:
            for number, stored in enumerate(reader.rows()):
                extender += stored.decision.source == "extender"
                if number < made:
                    outcomes[stored.result.outcome if stored.result else "open"] += 1
        return {
            "virtual_hours": config.hours,
            "nodes": config.nodes,
            "seconds": time.perf_counter() - begin,
            "decisions": made,
            "lost": client.churn.decided - extender,
            "untrue": client.untrue(),
            "open": outcomes["open"],
            "outcomes": dict(outcomes),
            "fallbacks": dict(client.fallbacks),
            "memory_mb": [round(value, 1) for value in memory],
            "memory_mb_per_hour": slope(hours, memory),
        }


def _live_through(client: Client, seconds: float) -> tuple[list[float], list[float]]:
    """Run the churn with measurements and lists; virtual hours and resident megabytes at each full hour."""
    hours, memory = [], []
    due = RELIST_SECONDS
    steps = np.arange(MEASURE_SECONDS, seconds + 1.0, MEASURE_SECONDS)
    for step in steps:
        for _ in client.churn.run(float(step)):
            pass
        client.measure()
        client.settle()  # five real minutes give the writer five minutes
        if step >= due:
            client.relist()
            due += RELIST_SECONDS
            gc.collect()
            hours.append(float(step) / 3_600)
            memory.append(resident_bytes() / 1e6)
    return hours, memory


def slope(hours: list[float], memory: list[float]) -> float:
    """Least squares growth after the warm-up, MB per virtual hour; 0 with too few hours."""
    after = [(hour, mb) for hour, mb in zip(hours, memory, strict=True) if hour > WARM_HOURS]
    if len(after) < 3:
        return 0.0
    x, y = np.array(after).T
    return float(np.polyfit(x, y, 1)[0])
