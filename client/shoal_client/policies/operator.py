# SPDX-License-Identifier: Apache-2.0
"""The operator: our custom resources into `Policies` and `Memberships`, and their statuses back.

kopf watches in a thread and an event loop of its own, with `on.event` handlers only and standalone: no
finalizers, no annotations, no peering objects, no events of kopf's. A change is in force when the handler
returns. kopf tells nothing of objects that vanished while its stream was broken, and does not start before
the resources exist; so a second thread lists them at the start and every `RESYNC_SECONDS`. The same thread
writes statuses, by server-side apply and only while we lead, and says in events what changed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, final

import kopf
from kopf._cogs.structs.credentials import Vault  # what `kopf.operator` takes, but does not export

from shoal_client.actuate.events import Events, Regarding
from shoal_client.kube.api import MEMBERSHIPS, SCHEDULING_POLICIES, Api, NotFound, Refused, Resource
from shoal_client.metrics import OPERATOR_ERRORS, OPERATOR_SYNCED, POLICY_MODE
from shoal_client.policies.limits import Limits
from shoal_client.policies.membership import Memberships, Standing, membership_status
from shoal_client.policies.objectives import Adaptation, Outcomes
from shoal_client.policies.registry import Policies
from shoal_client.policies.spec import API_VERSION, GROUP, VERSION, Mode
from shoal_client.policies.status import Serving, policy_status
from shoal_common.errors import ShoalError

FIELD_MANAGER = "shoal-client"
RESYNC_SECONDS = 30.0
RETRY_SECONDS = 5.0
WATCH_SECONDS = 60  # the server ends a stream after so long; a silent one is given up a little later
STOP_SECONDS = 2.0

_log = logging.getLogger("shoal.client.operator")
logging.getLogger("kopf").setLevel(logging.WARNING)  # it logs each event at INFO
logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # it warns of running in a thread


class Leadership(Protocol):
    """Who may write."""

    def is_leader(self) -> bool:
        """Whether we may act now."""
        ...


@final
class Operator:
    """Watches SchedulingPolicies and FederationMemberships and reports on them, between `start` and `stop`.

    `serving` says what is loaded and what is wrong with it, `standing` where the cluster stands in its
    federation at a delta, `outcomes` what adaptive objectives go by; `publish` is told what the trainer may
    do. All are called from the operator's own thread.
    """

    def __init__(
        self,
        api: Api,
        policies: Policies,
        leader: Leadership,
        serving: Callable[[], Serving],
        *,
        memberships: Memberships | None = None,
        standing: Callable[[float | None], Standing] = lambda delta: Standing(),
        outcomes: Callable[[], Outcomes] = Outcomes,
        publish: Callable[[Limits], object] = lambda limits: None,
        instance: str = "shoal-client",
    ) -> None:
        self._api, self._leader, self._serving = api, leader, serving
        self.policies, self.memberships = policies, memberships or Memberships()
        self._standing, self._outcomes, self._adaptation = standing, outcomes, Adaptation()
        self._publish = publish
        self._limits: Limits | None = None
        self._events = Events(api, instance)
        self._written: dict[str, Mapping[str, Any]] = {}
        self._installed, self._changed, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        policies.subscribe(self._changed.set)

    def start(self) -> None:
        """Begin to watch and to report."""
        for name, run in (("operator-watch", self._watch), ("operator-report", self._report)):
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop both threads."""
        self._stop.set()
        self._installed.set()
        if self._running is not None:
            loop, task = self._running
            with suppress(RuntimeError):  # the loop has ended already
                loop.call_soon_threadsafe(task.cancel)
        self._changed.set()
        for thread in self._threads:
            thread.join(STOP_SECONDS)

    def resync(self) -> None:
        """List both resources and take up what is there, and forget what is gone.

        Raises:
            ShoalError: the API did not answer or refused; what was known stays in force.
        """
        for name, obj in self._differences(SCHEDULING_POLICIES, self.policies.objects()):
            self.policies.delete(name) if obj is None else self.policies.set(obj)
        if not self.policies.synced:
            self.policies.mark_synced()
        for name, obj in self._differences(MEMBERSHIPS, self.memberships.objects()):
            self.memberships.delete(name) if obj is None else self.memberships.set(obj)

    def report(self) -> None:
        """Write every status that is not as it should be, if we lead; say in an event what changed."""
        serving, now = self._serving(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        _measure(self.policies)
        self._limit()
        for entry in self.policies.entries().values():
            status = policy_status(entry, serving, now)
            if self._write(SCHEDULING_POLICIES, entry.obj, status):
                self._tell(entry.obj, status)
        objects = self.memberships.objects()
        budget = self.policies.privacy()
        standing = self._standing(budget.delta if budget else None) if objects else Standing()
        for obj in objects.values():
            status = membership_status(obj, standing, budget, serving, now)
            self._write(MEMBERSHIPS, obj, status)

    def _differences(
        self, resource: Resource, known: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        """Objects that are not known in this form, and None for known ones that are gone."""
        try:
            found = {obj["metadata"]["name"]: obj for obj in self._api.list(resource)}
            self._installed.set()
        except NotFound:
            found = {}  # the resource is not installed
        for name in known.keys() - found.keys():
            if self._gone(resource, name):  # and was not merely made after the list was read
                yield name, None
        yield from ((name, obj) for name, obj in found.items() if known.get(name) != obj)

    def _gone(self, resource: Resource, name: str) -> bool:
        try:
            self._api.get(resource, name)
        except NotFound:
            return True
        return False

    def _report(self) -> None:
        resync_at = adapt_at = float("-inf")
        while not self._stop.is_set():
            try:
                if time.monotonic() >= resync_at:
                    self.resync()
                    pause = RESYNC_SECONDS if self._installed.is_set() else RETRY_SECONDS
                    resync_at = time.monotonic() + pause
                    OPERATOR_SYNCED.set(1)
                if time.monotonic() >= adapt_at:
                    self._adapt()
                    adapt_at = time.monotonic() + RESYNC_SECONDS
                self.report()
            except (ShoalError, OSError) as error:
                self._failed("report", error)
            self._changed.wait(RETRY_SECONDS)
            self._changed.clear()

    def _adapt(self) -> None:
        outcomes = self._outcomes()
        for name, entry in self.policies.entries().items():
            if entry.applied is not None:
                weights = self._adaptation.step(entry.applied, outcomes)
                if weights != entry.applied.weights:
                    self.policies.adapt(name, weights)

    def _limit(self) -> None:
        """Tell the trainer what it may do, when that changes; before the first list it is not known."""
        budget, suspended = self.policies.privacy(), self.memberships.suspended()
        limits = Limits(suspended=suspended)
        if budget is not None:
            limits = Limits(budget.epsilon, budget.delta, budget.clip_norm, suspended)
        if self.policies.synced and limits != self._limits:
            self._publish(limits)
            self._limits = limits

    def _write(self, resource: Resource, obj: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Apply a status unless it is there already or on its way to us; whether it was written."""
        metadata = obj["metadata"]
        key = metadata.get("uid") or metadata["name"]
        if obj.get("status") == status:
            self._written.pop(key, None)
            return False
        if self._written.get(key) == status or not self._leader.is_leader():
            return False
        body = {
            "apiVersion": API_VERSION,
            "kind": resource.kind,
            "metadata": {"name": metadata["name"]},
            "status": status,
        }
        try:
            self._api.patch(
                resource,
                metadata["name"],
                body,
                kind="apply",
                subresource="status",
                field_manager=FIELD_MANAGER,
                force=True,
            )
        except Refused as error:  # not allowed, gone meanwhile, or not what the installed definition takes
            self._failed(f"status of {resource.kind} {metadata['name']}", error)
            return False
        self._written[key] = status
        return True

    def _tell(self, obj: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        metadata, before = obj["metadata"], obj.get("status") or {}
        about = Regarding(API_VERSION, SCHEDULING_POLICIES.kind, metadata["name"], metadata.get("uid") or "")
        for reason, note, warning in _news(before, status):
            self._events.emit(about, reason, "Operate", note, warning=warning)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._installed.wait()
            if self._stop.is_set():
                return
            try:
                asyncio.run(self._kopf())
            except asyncio.CancelledError:
                return
            except Exception as error:  # whatever kopf raises, policies stay in force and it starts anew
                self._failed("watch", error)
            self._stop.wait(RETRY_SECONDS)

    async def _kopf(self) -> None:
        """Watch until cancelled. Stopped by its own flag, kopf would wait seconds for calls under way."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._running = asyncio.get_running_loop(), task
        vault = Vault()
        try:
            if not self._stop.is_set():
                await kopf.operator(
                    registry=self._registry(),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=True,
                    vault=vault,
                )
        finally:
            await vault.close()  # sessions that were opened while kopf was closing its own

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return _connection(self._api)

        @kopf.on.event(GROUP, VERSION, SCHEDULING_POLICIES.plural, registry=registry)
        async def policy(event: Mapping[str, Any], **_: Any) -> None:
            if event["type"] == "DELETED":
                self.policies.delete(event["object"]["metadata"]["name"])
            else:
                self.policies.set(event["object"])

        @kopf.on.event(GROUP, VERSION, MEMBERSHIPS.plural, registry=registry)
        async def membership(event: Mapping[str, Any], **_: Any) -> None:
            if event["type"] == "DELETED":
                self.memberships.delete(event["object"]["metadata"]["name"])
            else:
                self.memberships.set(event["object"])
            self._changed.set()

        return registry

    def _failed(self, what: str, error: Exception) -> None:
        OPERATOR_ERRORS.inc()
        _log.warning("%s: %s", what, error)


def _settings() -> kopf.OperatorSettings:
    """Every call with a time-out; nothing is posted, scanned for or persisted in objects."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.request_timeout = settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = (1, 2, 5)
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    settings.watching.inactivity_timeout = WATCH_SECONDS + 10
    settings.watching.connect_timeout = 10.0
    return settings


def _connection(api: Api) -> kopf.ConnectionInfo:
    """kopf's credentials; it asks again when they stop working."""
    held = api.credentials()
    scheme, _, token = held.authorization.rpartition(" ")
    return kopf.ConnectionInfo(
        server=held.server,
        ca_path=held.ca_file or None,
        insecure=not held.verify,
        scheme=scheme or None,
        token=token or None,
        certificate_path=held.certificate_file or None,
        private_key_path=held.key_file or None,
    )


def _measure(policies: Policies) -> None:
    modes = [entry.applied.mode for entry in policies.entries().values() if entry.applied is not None]
    for mode in Mode:
        POLICY_MODE.labels(mode.value).set(modes.count(mode))


def _news(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """What a new status says that the one before did not: reason, note and whether it is a warning."""
    was = {c["type"]: c for c in before.get("conditions") or ()}
    has = {c["type"]: c for c in after["conditions"]}
    news = []
    if after.get("rollback") and after["rollback"] != before.get("rollback"):
        news.append(("PolicyRolledBack", f"back to Shadow: {after['rollback']['reason']}", True))
    elif has["Ready"]["reason"] == "Invalid" and was.get("Ready", {}).get("reason") != "Invalid":
        news.append(("PolicyInvalid", has["Ready"]["message"], True))
    elif "mode" in after and (after["mode"], after["observedGeneration"]) != (
        before.get("mode"),
        before.get("observedGeneration"),
    ):
        news.append(
            ("PolicyApplied", f"mode {after['mode']}, generation {after['observedGeneration']}", False)
        )
    if has["Degraded"]["reason"] == "Fallback" and was.get("Degraded", {}).get("reason") != "Fallback":
        news.append(("ScoringFallback", has["Degraded"]["message"], True))
    return news
