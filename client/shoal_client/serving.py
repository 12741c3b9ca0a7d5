# SPDX-License-Identifier: Apache-2.0
"""The serving process: watch, measure, decide, record, report; every part wired, started and stopped here.

Nothing in it imports torch. Parts that cannot run (no Prometheus, no store, no custom resources) are left
out or wait; the extender answers in any case, neutrally where it must.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from shoal_client.actuate.actuators import Actuators, ActuatorSettings
from shoal_client.actuate.authority import Authority
from shoal_client.actuate.chooser import PolicyChooser
from shoal_client.actuate.leader import Leader, LeaseSettings
from shoal_client.actuate.pod_use import MeasuredUse
from shoal_client.actuate.twin_gain import TwinGain
from shoal_client.actuate.webhook import WebhookSettings
from shoal_client.collect.collector import Collector
from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.recorder import Recorder
from shoal_client.experience.store import ExperienceStore
from shoal_client.kube.api import PODS, connect
from shoal_client.kube.permissions import LEASE
from shoal_client.policies.limits import Limits, write_limits
from shoal_client.policies.membership import LedgerStanding
from shoal_client.policies.objectives import Outcomes, PowerMeter
from shoal_client.policies.operator import Operator
from shoal_client.policies.registry import Policies
from shoal_client.policies.spec import Drift, Fallback, Mode
from shoal_client.policies.status import Serving
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.breaker import Breaker
from shoal_client.serve.decider import Decider
from shoal_client.serve.extender import Application, Extender
from shoal_client.serve.guard import Guard
from shoal_client.serve.guardrails import Guardrails
from shoal_client.serve.heap import Heap
from shoal_client.serve.payloads import Binding, MetaVictims
from shoal_client.serve.scorer_grpc import ScorerServer
from shoal_client.serve.server import Address, HttpServer, Tls
from shoal_client.serve.service import DecisionService, allowed_victims, bind
from shoal_client.state.informer import Informer
from shoal_client.state.live import LiveCluster
from shoal_common.errors import InputError, ShoalError

STOP_SECONDS = 2.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_log = logging.getLogger("shoal.client")


class Part(Protocol):
    """Something that runs in threads of its own."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What the serving process is told on its command line."""

    listen: Address
    kubeconfig: Path | None = None
    policy: Path | None = None
    prometheus: str = ""
    prometheus_token: Path | None = None
    prometheus_ca: Path | None = None
    mode: Mode = Mode.SHADOW
    killed: bool = False
    metrics_listen: Address | None = None
    tls: Tls | None = None
    grpc_socket: Path | None = None
    store: Path | None = None
    training: Path | None = None
    namespace: str = ""
    preempt: bool = False
    actuate: bool = False
    webhook_listen: Address | None = None
    webhook_tls: Tls | None = None
    mig_config_map: str = ""  # NAMESPACE/NAME


@final
class ServingProcess:
    """All parts of `shoal client serve`."""

    def __init__(self, settings: ServeSettings) -> None:
        """Open what can be wrong: credentials, artifact, store, addresses.

        Raises:
            InputError, SchemaMismatch, Fatal: one of them is.
        """
        self.settings = settings
        if settings.training is not None and settings.training.exists() and not settings.training.is_dir():
            raise InputError(str(settings.training), "--training", "is no directory", "give the trainer's")
        self.api = connect(settings.kubeconfig)
        self.artifact = ArtifactFile(settings.policy)
        self.live = LiveCluster()
        self.policies = Policies(settings.mode, killed=settings.killed)
        self._namespace = settings.namespace or own_namespace()
        self._instance = f"{socket.gethostname()}-{os.getpid()}"
        self.store, self.recorder = self._experience()
        self.guardrails = Guardrails(
            self.policies, self.live.namespace_labels, self.live.apps, self.policies.roll_back
        )
        self.breaker = Breaker()
        self.decider = Decider(self.live, self.artifact)
        self.guard = Guard(self.policies, self.live, self._namespace)
        self.service = DecisionService(
            self.live, self.decider, self.guard, self.recorder, self.guardrails, self.breaker
        )
        self._heap = Heap(lambda: self.live.synced)
        self._http = self._servers()
        self._grpc = ScorerServer(self.service, settings.grpc_socket) if settings.grpc_socket else None
        self.informer = Informer(self.api, self.live)
        self.pod_use = MeasuredUse(self.live)
        self.power = PowerMeter()
        self.collector = self._collector()
        lease = LeaseSettings(LEASE, self._namespace or "default", self._instance, actuates=settings.actuate)
        self.leader = Leader(self.api, lease)
        self.operator = self._operator()
        self._actuators = self._actuation()
        self.live.subscribe(self.guardrails.pod_changed)

    @property
    def port(self) -> int:
        """The extender's port."""
        return self._http[0].port

    def start(self) -> None:
        """Start every part; the extender answers when this returns, neutrally until the caches are full."""
        if self.store is not None and self.recorder is not None:
            self.store.start()
            self.recorder.start()
        for server in self._http:
            server.start()
        for part in self._parts():
            part.start()

    def stop(self) -> None:
        """Answer no more, bring what was recorded to disk, let gated pods go, then end all other parts.

        Returns after twice `STOP_SECONDS` at the latest; what has not ended by then dies with the process.
        """
        for stop in (*(server.stop for server in self._http), self.service.stop):
            _stopped(stop)
        for stored in (self.recorder, self.store):
            if stored is not None:
                _stopped(stored.stop)
        _end([self._actuators])  # while we lead: nobody else may take a gate off
        _end([part for part in self._parts() if part is not self._actuators])

    def _parts(self) -> list[Part]:
        """What runs beside the extender, in the order in which it starts."""
        optional = (self._grpc, self.collector, self._actuators)
        needed = (self.leader, self.informer, self.operator, self.decider, self.guardrails)
        return [self._heap, self.artifact, *needed, *(part for part in optional if part is not None)]

    def ready(self) -> str:
        """Why decisions cannot be made, "" where they can."""
        if not (self.live.synced and self._heap.settled):
            return "the watch caches are not full yet"
        if self.settings.policy is not None and self.artifact.current is None:
            return "no policy is loaded"
        return ""

    def serving(self) -> Serving:
        """What is loaded and what is wrong with it, for the status of our resources."""
        current, degraded = self.artifact.current, self._degraded()
        if current is None:
            return Serving(error="no policy artifact is given", degraded=degraded)
        return Serving(current.version, current.digest, "", degraded, self.artifact.problem)

    def _degraded(self) -> str:
        """Why answers are neutral at the moment; "" where they are not."""
        fallback, drift = Fallback(), Drift()
        if self.ready():
            return self.ready()
        oldest = self.guard.staleness_seconds
        if oldest > fallback.max_staleness_seconds:
            return f"nothing was heard of nodes or pods for {oldest:.0f} s"
        if self.breaker.open:
            return "the circuit breaker is open"
        if self.decider.drift_index > drift.max_shift:
            return f"pods or hardware have shifted: index {self.decider.drift_index:.2f}"
        return ""

    def _experience(self) -> tuple[ExperienceStore | None, Recorder | None]:
        """The store and its recorder, where a directory is given."""
        if self.settings.store is None:
            return None, None
        store = ExperienceStore(self.settings.store)
        apps = AppHistory(store.key, store.apps)
        self.live.apps = apps
        recorder = Recorder(store, self.live, apps)
        self.live.subscribe(recorder.pod_changed)
        return store, recorder

    def _servers(self) -> list[HttpServer]:
        settings = self.settings
        extender = Extender(
            self.service, lambda wanted: bind(self.api, wanted, self._bound_to), self._victims
        )
        servers = [HttpServer(Application(extender, self.ready), settings.listen, settings.tls)]
        if settings.metrics_listen is not None:
            servers.append(HttpServer(Application(None, self.ready), settings.metrics_listen))
        return servers

    def _bound_to(self, wanted: Binding) -> str:
        """Where this very pod is bound, by the API itself."""
        try:
            pod = self.api.get(PODS, wanted.pod_name, wanted.pod_namespace)
        except ShoalError:
            return ""
        same = pod["metadata"].get("uid") == wanted.pod_uid
        return str(pod["spec"].get("nodeName") or "") if same else ""

    def _victims(self, asked: dict[str, MetaVictims]) -> dict[str, MetaVictims]:
        return allowed_victims(asked, self.live.pods.__contains__, not self.settings.preempt)

    def _operator(self) -> Operator:
        training = self.settings.training
        return Operator(
            self.api,
            self.policies,
            self.leader,
            self.serving,
            standing=LedgerStanding(training / "ledger.jsonl" if training else None),
            outcomes=lambda: Outcomes(self.guardrails.sla_violations(), self.power.watts),
            publish=self._publish,
            instance=self._instance,
        )

    def _publish(self, limits: Limits) -> None:
        if self.settings.training is not None:
            write_limits(self.settings.training, limits)

    def _collector(self) -> Collector | None:
        if not self.settings.prometheus:
            return None
        asked = self.settings
        client = PrometheusClient(asked.prometheus, asked.prometheus_token, asked.prometheus_ca)
        listeners = [self.live.measure, self.power.measured, self.pod_use.measured]
        listeners += [self.recorder.measured] if self.recorder else []
        return Collector(client, self.live, listeners)

    def _actuation(self) -> Actuators:
        """All actions; where none is granted, pods that were left gated are let go and no more."""
        authority = Authority(self.policies, self.live.namespace_labels, self.settings.actuate)
        chooser = PolicyChooser(self.live, self.decider, self.guard, self.pod_use)
        pod_use = self.pod_use.cores if self.settings.prometheus else None
        settings = ActuatorSettings(self._instance, self._webhook(), self.settings.mig_config_map)
        gain = TwinGain(self.live, authority)
        return Actuators(self.api, self.leader, self.live, authority, chooser, settings, pod_use, gain)

    def _webhook(self) -> WebhookSettings | None:
        """The mutating webhook, where it is asked for."""
        listen, tls = self.settings.webhook_listen, self.settings.webhook_tls
        if listen is None or tls is None:
            return None
        return WebhookSettings(listen, tls, self._namespace)


def _end(parts: Sequence[Part]) -> None:
    """Stop parts side by side, and wait no longer than `STOP_SECONDS`."""
    threads = [threading.Thread(target=_stopped, args=(part.stop,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    until = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _stopped(stop: Callable[[], object]) -> None:
    """Stop a part; the others must stop all the same."""
    try:
        stop()
    except Exception:
        _log.exception("%s did not stop", stop)


def own_namespace() -> str:
    """The namespace this process runs in; "" outside of a cluster."""
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""
