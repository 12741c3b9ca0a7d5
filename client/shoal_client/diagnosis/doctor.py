# SPDX-License-Identifier: Apache-2.0
"""`shoal client doctor`: every check, one finding a line, each with its remedy.

A check never raises: what keeps it from looking is its finding. Nothing is written to the cluster but
SelfSubjectAccessReviews, which only ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import msgspec

from shoal_client.diagnosis.findings import Finding, Level
from shoal_client.diagnosis.stanza import lint
from shoal_client.kube.api import CONFIG_MAPS, MEMBERSHIPS, NODES, SCHEDULING_POLICIES, NotFound, connect
from shoal_client.kube.permissions import ACTIONS, CLIENT, OWN_NAMESPACE, Permission
from shoal_client.policies.spec import MEMBERSHIP_KIND, FederationMembershipSpec, read_spec
from shoal_common.errors import InputError, ShoalError

if TYPE_CHECKING:
    from shoal_client.policies.registry import AppliedPolicy

OLDEST = (1, 30)
MOST_SKEW_SECONDS = 5.0
WINDOW_SECONDS = 1.0  # only joins are looked at, not rates: series may be as young as this
APPLY_CRDS = "kubectl apply -f deploy/crds/"
GRANT = "kubectl apply -f deploy/rbac/{}"
ACT_AS = "run as shoal-actuator (deploy/rbac/actuator.yaml) and "
ACTION_ROLES = {
    "cpu_quota": "placement",
    "memory_quota": "placement",
    "accelerator": "accelerator",
    "replicas": "replicas",
    "routes": "routes",
    "migration": "migration",
}


@dataclass(frozen=True, slots=True)
class Examination:
    """What to look at; what is not given is skipped and said."""

    kubeconfig: Path | None = None
    scheduler_config: str = ""  # a file, or configmap:NAMESPACE/NAME
    prometheus: str = ""
    prometheus_token: Path | None = None
    prometheus_ca: Path | None = None
    policy: Path | None = None
    ledger: Path | None = None
    namespace: str = OWN_NAMESPACE


@dataclass(slots=True)
class _Known:
    """What earlier checks found out for later ones."""

    nodes: list[Mapping[str, Any]] = field(default_factory=list)
    policies: list[AppliedPolicy] = field(default_factory=list)


@final
class Doctor:
    """Runs the checks against one cluster."""

    def __init__(self, asked: Examination) -> None:
        """Nothing is sent yet.

        Raises:
            InputError: there are no usable credentials.
        """
        self._asked, self._api, self._known = asked, connect(asked.kubeconfig), _Known()

    def examine(self) -> Iterator[Finding]:
        """All findings, in the order in which they matter; without an API server only the local ones."""
        reached = list(self._reach())
        yield from reached
        if reached[0].level is Level.OK:
            yield from self._guarded("crds", self._resources)
            yield from self._guarded("rbac", self._permissions)
            yield from self._guarded("nodes", self._nodes)
        yield from self._guarded("scheduler", self._scheduler)
        yield from self._guarded("metrics", self._metrics)
        yield from self._guarded("policy", self._artifact)
        yield from self._guarded("budget", self._budget)

    def _guarded(self, check: str, run: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
        try:
            yield from run()
        except InputError as error:
            yield Finding(check, Level.ERROR, f"{error.where}: {error.field}: {error.problem}", error.remedy)
        except (ShoalError, OSError) as error:
            yield Finding(check, Level.ERROR, str(error), "mend that and run doctor again")

    def _reach(self) -> Iterator[Finding]:
        """The API server, its version and its clock."""
        server = self._api.server
        try:
            before = time.time()
            version = self._api.version()
            after = time.time()
        except ShoalError as error:
            yield Finding("api", Level.ERROR, str(error), "check --kubeconfig and the way to the server")
            return
        if (version.major, version.minor) < OLDEST:
            message = f"{server} is {version.text}"
            yield Finding("api", Level.ERROR, message, "Shoal needs Kubernetes 1.30 or newer")
        else:
            yield Finding(
                "api", Level.OK, f"{server} is {version.text}, {(after - before) * 1e3:.0f} ms away"
            )
        if version.date is not None:
            yield _skew(version.date, before, after)

    def _resources(self) -> Iterator[Finding]:
        try:
            policies = list(self._api.list(SCHEDULING_POLICIES))
            members = list(self._api.list(MEMBERSHIPS))
        except NotFound:
            message = (
                "SchedulingPolicy or FederationMembership is not installed: the mode is Shadow for every pod"
            )
            yield Finding("crds", Level.ERROR, message, APPLY_CRDS)
            return
        yield Finding("crds", Level.OK, f"installed; {len(policies)} policies, {len(members)} memberships")
        yield from self._policies(policies)
        yield from _memberships(members)

    def _policies(self, objects: list[dict[str, Any]]) -> Iterator[Finding]:
        from shoal_client.policies.registry import Policies

        registry = Policies()
        for obj in objects:
            registry.set(obj)
        for name, entry in registry.entries().items():
            if entry.applied is None:
                yield Finding("policies", Level.ERROR, entry.error, "mend it; it is out of force")
                continue
            self._known.policies.append(entry.applied)
            yield _policy(name, entry.applied, entry.obj.get("status") or {})

    def _permissions(self) -> Iterator[Finding]:
        wanted = [(p, GRANT.format("client.yaml")) for p in CLIENT]
        roles = {
            ACTION_ROLES[action]
            for policy in self._known.policies
            for action in ACTION_ROLES
            if getattr(policy.spec.actions, action).enabled
        }
        for role in sorted(roles):
            wanted += [(p, ACT_AS + GRANT.format(f"action-{role}.yaml")) for p in ACTIONS[role]]
        missing = 0
        for permission, remedy in ((self._here(asked), remedy) for asked, remedy in wanted):
            if not self._allowed(permission):
                missing += 1
                yield Finding("rbac", Level.ERROR, f"may not {permission.sentence()}", remedy)
        if not missing:
            yield Finding("rbac", Level.OK, f"all {len(wanted)} permissions are granted")

    def _here(self, permission: Permission) -> Permission:
        """The permission in the namespace that Shoal runs in here."""
        own = permission.namespace == OWN_NAMESPACE
        return permission._replace(namespace=self._asked.namespace) if own else permission

    def _allowed(self, permission: Permission) -> bool:
        return self._api.access_review(
            permission.verb,
            permission.resource,
            subresource=permission.subresource,
            namespace=permission.namespace,
            name=permission.name,
        )

    def _nodes(self) -> Iterator[Finding]:
        self._known.nodes = list(self._api.list(NODES))
        if not self._known.nodes:
            yield Finding(
                "nodes", Level.WARNING, "the cluster has no node", "add one; nothing can be scheduled"
            )

    def _scheduler(self) -> Iterator[Finding]:
        given = self._asked.scheduler_config
        if not given:
            remedy = "give --scheduler-config FILE or configmap:NAMESPACE/NAME"
            yield Finding("scheduler", Level.SKIPPED, "kube-scheduler's configuration was not given", remedy)
            return
        specs = [policy.spec for policy in self._known.policies]
        yield from lint(
            _decoded(given, self._configuration(given)),
            len(self._known.nodes),
            max((spec.fallback.timeout_ms for spec in specs), default=100),
            max((spec.score_scale for spec in specs), default=10),
        )

    def _configuration(self, given: str) -> str:
        if not given.startswith("configmap:"):
            try:
                return Path(given).read_text()
            except (OSError, UnicodeDecodeError) as error:
                problem, remedy = " ".join(str(error).split()), "give kube-scheduler's --config"
                raise InputError(given, "--scheduler-config", problem, remedy) from error
        namespace, _, name = given.removeprefix("configmap:").partition("/")
        if not namespace or not name:
            remedy = "write configmap:NAMESPACE/NAME"
            raise InputError(given, "--scheduler-config", "does not name a ConfigMap", remedy)
        data = self._api.get(CONFIG_MAPS, name, namespace).get("data") or {}
        for text in data.values():
            if "KubeSchedulerConfiguration" in text:
                return str(text)
        raise InputError(given, "data", "has no KubeSchedulerConfiguration", "name another ConfigMap")

    def _metrics(self) -> Iterator[Finding]:
        if not self._asked.prometheus:
            message = "no Prometheus was given: state comes from requests alone"
            yield Finding("metrics", Level.SKIPPED, message, "give --prometheus URL")
            return
        from shoal_client.collect.prometheus import PrometheusClient
        from shoal_client.collect.rounds import Questioner
        from shoal_common.fields import Field
        from shoal_common.manifests import read_node

        nodes = {n.name: n for n in (read_node(Field("node", "", raw)) for raw in self._known.nodes)}
        asked = self._asked
        client = PrometheusClient(asked.prometheus, asked.prometheus_token, asked.prometheus_ca)
        questions = Questioner(client, WINDOW_SECONDS)
        questions.know(nodes)
        for source, report in questions.sources().items():
            yield _source(source, len(report.nodes), len(nodes), report.unmatched)

    def _artifact(self) -> Iterator[Finding]:
        if self._asked.policy is None:
            yield Finding("policy", Level.SKIPPED, "no artifact was given", "give --policy DIRECTORY")
            return
        from shoal_common.scorers.artifact import read_manifest

        digest = str(read_manifest(self._asked.policy)["digest"])
        refusing = [policy.name for policy in self._known.policies if not policy.admits(digest)]
        if refusing:
            message = f"policyRef of {', '.join(refusing)} asks for another digest than {digest}"
            yield Finding("policy", Level.ERROR, message, "serve that artifact or change policyRef.digest")
        else:
            yield Finding("policy", Level.OK, f"{self._asked.policy} verifies, digest {digest}")

    def _budget(self) -> Iterator[Finding]:
        if self._asked.ledger is None:
            yield Finding("budget", Level.SKIPPED, "no privacy ledger was given", "give --ledger FILE")
            return
        from shoal_client.policies.membership import read_standing

        if not self._asked.ledger.exists():
            message = f"{self._asked.ledger} does not exist: nothing was charged yet, or the path is wrong"
            yield Finding("budget", Level.WARNING, message, "look where the trainer keeps its ledger")
            return
        budgets = [policy.spec.privacy for policy in self._known.policies if policy.spec.privacy]
        strictest = min(budgets, key=lambda b: b.epsilon, default=None)
        standing = read_standing(self._asked.ledger, strictest.delta if strictest else None)
        if standing.error:
            yield Finding("budget", Level.ERROR, standing.error, "restore the ledger; nothing is shipped")
        elif standing.epsilon_spent is None:
            yield Finding("budget", Level.OK, f"{self._asked.ledger}: nothing is spent")
        else:
            limit = strictest.epsilon if strictest else None
            yield _spent(standing.epsilon_spent, standing.delta, standing.round, limit)


def _skew(date: float, before: float, after: float) -> Finding:
    """The server tells whole seconds, so a skew is known to about one."""
    skew = (before + after) / 2 - date - 0.5
    if abs(skew) > MOST_SKEW_SECONDS:
        message = f"this clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
        remedy = "run a time service; durations are not harmed, but times in statuses and the store are"
        return Finding("clock", Level.WARNING, message, remedy)
    return Finding("clock", Level.OK, f"within {MOST_SKEW_SECONDS:.0f} s of the server's")


def _policy(name: str, policy: AppliedPolicy, status: Mapping[str, Any]) -> Finding:
    if policy.rolled_back:
        message = f"{name} is rolled back to Shadow: {policy.rolled_back}"
        remedy = "find out why; changing its spec ends the rollback"
        return Finding("policies", Level.WARNING, message, remedy)
    if status.get("observedGeneration") != policy.generation:
        message = f"{name} asks for mode {policy.mode.value}, but no client has reported on it"
        remedy = "start `shoal client serve` in this cluster, or look whether it leads (shoal_leader)"
        return Finding("policies", Level.WARNING, message, remedy)
    return Finding("policies", Level.OK, f"{name}: mode {policy.mode.value}")


def _memberships(objects: list[dict[str, Any]]) -> Iterator[Finding]:
    for obj in objects:
        try:
            read_spec(FederationMembershipSpec, MEMBERSHIP_KIND, obj)
        except InputError as error:
            yield Finding("policies", Level.ERROR, str(error), "mend it")
    if len(objects) > 1:
        names = ", ".join(obj["metadata"]["name"] for obj in objects)
        yield Finding("policies", Level.WARNING, f"several memberships: {names}", "keep one for each cluster")


def _source(source: str, found: int, nodes: int, unmatched: list[dict[str, str]]) -> Finding:
    if unmatched:
        labels = ", ".join(f"{k}={v}" for k, v in sorted(unmatched[0].items()) if k != "__name__")
        message = f"{source}: {found} of {nodes} nodes; {len(unmatched)} series of no node ({labels[:120]})"
        return Finding("metrics", Level.WARNING, message, "relabel them with node=NAME (docs/collectors.md)")
    if found == 0:
        message = f"{source}: no series"
        return Finding(
            "metrics", Level.WARNING, message, "scrape it, if the cluster has it (docs/collectors.md)"
        )
    if found < nodes:
        return Finding(
            "metrics", Level.WARNING, f"{source}: {found} of {nodes} nodes", "scrape it on every node"
        )
    return Finding("metrics", Level.OK, f"{source}: all {nodes} nodes")


def _spent(spent: float, delta: float | None, last_round: int | None, limit: float | None) -> Finding:
    message = f"epsilon {spent:.3g} at delta {delta:.0e} after round {last_round}"
    if limit is None:
        return Finding("budget", Level.OK, f"{message}; no policy sets a limit")
    if spent >= limit:
        remedy = "serving goes on; raise spec.privacy.epsilon only if the owners of the data agree"
        return Finding("budget", Level.ERROR, f"{message}: the limit {limit:g} is reached", remedy)
    return Finding("budget", Level.OK, f"{message}, {limit - spent:.3g} of {limit:g} left")


def _decoded(where: str, text: str) -> object:
    try:
        return msgspec.yaml.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(
            where, "document", f"is no YAML ({error})", "give kube-scheduler's --config"
        ) from None
