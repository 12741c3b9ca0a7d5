# SPDX-License-Identifier: Apache-2.0
"""`Actuators`: everything Shoal does to a cluster beside answering its scheduler, started and stopped as one.

Nothing acts unless this process leads and a SchedulingPolicy that serves the pod allows it. Two threads: one
for gated pods and what follows them, where a pod waits for us; one for the slow actions, where nobody does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events
from shoal_client.actuate.gates import Gates
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.locks import Locks
from shoal_client.actuate.loop import Loop, Part
from shoal_client.actuate.mig_layout import MigLayout
from shoal_client.actuate.mig_source import ConfigMapCatalogue
from shoal_client.actuate.migrate import Gain, Migration
from shoal_client.actuate.placer import Chooser, PolicyPlacer
from shoal_client.actuate.rescue import Rescue
from shoal_client.actuate.resize_watch import ResizeWatch
from shoal_client.actuate.routes import Routes
from shoal_client.actuate.scale import PodUse, Scale
from shoal_client.actuate.webhook import WebhookServer, WebhookSettings
from shoal_client.kube.api import Api
from shoal_client.state.live import LiveCluster, PodChange
from shoal_common.fields import Field
from shoal_common.manifests import read_pod

FAST_SECONDS, SLOW_SECONDS = 0.5, 5.0
ALIVE_SECONDS = 5.0
"""No gate is put on while the thread that takes them off has not gone round for so long."""


@dataclass(frozen=True, slots=True)
class ActuatorSettings:
    """What cannot be read from a SchedulingPolicy."""

    instance: str  # this process, in events
    webhook: WebhookSettings | None = None
    mig_config_map: str = ""  # NAMESPACE/NAME of mig-parted's


@final
class Actuators:
    """All actions of one process; whoever made `leader` starts it, and stops it after this."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        authority: Authority,
        chooser: Chooser,
        settings: ActuatorSettings,
        pod_use: PodUse | None = None,
        gain: Gain | None = None,
    ) -> None:
        self._leader, self._authority, self._cluster = leader, authority, cluster
        self._closing = False
        events, locks = Events(api, settings.instance), Locks()
        self._rescue = Rescue(api, leader, cluster, events)
        placer = PolicyPlacer(api, cluster, authority, chooser, self._rescue.exempt)
        self._gates = Gates(api, leader, cluster, placer, events)
        self._resizes = ResizeWatch(api, leader, events)
        routes = Routes(api, leader, cluster, authority)
        slow = [Part("dispatch", routes.step, 1.0, partial(authority.enabled, lambda a: a.routes.enabled))]
        if pod_use is not None:
            scale = Scale(api, leader, cluster, authority, pod_use, events)
            wanted = partial(authority.enabled, lambda a: a.replicas.enabled)
            slow.append(Part("scale", scale.step, SLOW_SECONDS, wanted))
        if gain is not None:
            migration = Migration(api, leader, cluster, authority, gain, locks, events)
            wanted = partial(authority.enabled, lambda a: a.migration.enabled)
            slow.append(Part("migrate", migration.step, SLOW_SECONDS, wanted))
        if settings.mig_config_map:
            namespace, _, name = settings.mig_config_map.rpartition("/")
            catalogue = ConfigMapCatalogue(api, namespace or "default", name)
            layout = MigLayout(api, leader, cluster, authority, catalogue.read, locks, events)
            slow.append(Part("mig_layout", layout.step, SLOW_SECONDS))
        fast = [
            Part("gate", self._gates.step, FAST_SECONDS),
            Part("revert", self._resizes.step, SLOW_SECONDS),
            Part("rescue", self._rescue.step, SLOW_SECONDS),
        ]
        self._fast = Loop("actuate-fast", fast, leader.is_leader)
        self._slow = Loop("actuate-slow", slow, leader.is_leader)
        self.webhook = WebhookServer(settings.webhook, self._wants_gate) if settings.webhook else None
        cluster.subscribe(self._pod_changed)

    def start(self) -> None:
        """Begin to act while we lead; the webhook answers in any case.

        Raises:
            Fatal: the webhook does not come up.
        """
        self._fast.start()
        self._slow.start()
        if self.webhook is not None:
            self.webhook.start()

    def stop(self) -> None:
        """Put on no more gates, let go every pod that still carries ours, end all threads."""
        self._closing = True
        self._fast.stop(1.0)
        self._gates.release_all()
        if self.webhook is not None:
            self.webhook.stop()
            self._gates.release_all()  # those that were being created
        self._slow.stop(0.5)

    def _pod_changed(self, change: PodChange) -> None:
        self._gates.pod_changed(change)
        self._resizes.pod_changed(change)
        self._rescue.pod_changed(change)
        if change.after is not None and change.after.gates:
            self._fast.wake()

    def _wants_gate(self, namespace: str, raw: Mapping[str, Any]) -> bool:
        """Whether a pod that is being created will be placed, and somebody is there to take the gate off."""
        metadata = {"name": "unnamed", **raw["metadata"], "namespace": namespace}
        pod = read_pod(Field("admission", "pod", {**raw, "metadata": metadata}))
        if self._closing:
            return False
        working = not self._leader.is_leader() or self._fast.alive_within(ALIVE_SECONDS)
        there = self._leader.is_led() and working and self._cluster.synced
        return there and self._authority.places(pod) and not self._rescue.exempt(pod)
