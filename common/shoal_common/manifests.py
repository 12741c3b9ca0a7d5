# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own JSON into the slim records of `shoal_common.pods`: nodes, pods, services, namespaces.

A client's watch cache, the command line and the tests read through here. Wrong input is an InputError naming
the field. What the API server itself fills in (requests from limits, matchLabelKeys of pod affinity, default
protocols of stored pods) is expected to be filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from sys import intern

from shoal_common.fields import Field
from shoal_common.pods import (
    DO_NOT_SCHEDULE,
    SCHEDULE_ANYWAY,
    HostPort,
    NamespaceRecord,
    NodeImage,
    NodeRecord,
    PodRecord,
    PodStatus,
    PodTerm,
    PreferredNodeTerm,
    ServiceRecord,
    SpreadConstraint,
)
from shoal_common.requests import ContainerResources, PodResources, rounded
from shoal_common.selectors import LabelSelector, NodeSelectorTerm, Requirement, Taint, Toleration

ANNOTATIONS = (
    "shoal.dev/",
    "nvidia.com/",
    "hami.io/",
    "volcano.sh/",
    "scheduling.",
    "workflows.argoproj.io/",
)
"""Prefixes of the annotations that are kept; the others may be large and private."""

LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
NODE_OPERATORS = (*LABEL_OPERATORS, "Gt", "Lt")
TOLERATION_OPERATORS = ("Equal", "Exists", "Gt", "Lt")  # Gt and Lt, behind a feature gate, tolerate nothing
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def read_node(source: Field) -> NodeRecord:
    """Build a node from its Kubernetes JSON.

    Raises:
        InputError: a field is missing or wrong; the error names it.
    """
    metadata, spec, status = source.get("metadata"), source.get("spec"), source.get("status")
    return NodeRecord(
        name=metadata.get("name").text(),
        labels=metadata.get("labels").labels(),
        allocatable=rounded(status.get("allocatable").quantities()),
        taints=tuple(
            Taint(t.get("key").text(), t.get("value").text(""), t.get("effect").text())
            for t in spec.get("taints").items()
        ),
        unschedulable=spec.get("unschedulable").flag(),
        images=tuple(
            NodeImage(i.get("names").texts(), i.get("sizeBytes").integer(0, low=0))
            for i in status.get("images").items()
        ),
        uid=metadata.get("uid").text(""),
        annotations=_annotations(metadata),
        ready=_conditions(status).get("Ready", Field(status.where, "", None)).get("status").text("True")
        == "True",
        pressure=tuple(
            c.get("type").text()
            for c in status.get("conditions").items()
            if c.get("status").text("") == "True" and c.get("type").text() != "Ready"
        ),
        addresses=tuple(a.get("address").text() for a in status.get("addresses").items()),
    )


def read_service(source: Field) -> ServiceRecord:
    """Build a service from its Kubernetes JSON."""
    metadata = source.get("metadata")
    selector = source.get("spec").get("selector").labels()
    return ServiceRecord(metadata.get("name").text(), metadata.get("namespace").text("default"), selector)


def read_namespace(source: Field) -> NamespaceRecord:
    """Build a namespace from its Kubernetes JSON."""
    metadata = source.get("metadata")
    return NamespaceRecord(metadata.get("name").text(), metadata.get("labels").labels())


def read_label_selector(source: Field) -> LabelSelector | None:
    """A `metav1.LabelSelector`; None where absent, which matches nothing.

    Raises:
        InputError: names the field that is missing or wrong.
    """
    if not source.present:
        return None
    equal = (Requirement(key, "In", (wanted,)) for key, wanted in source.get("matchLabels").labels().items())
    lines = (_requirement(e, LABEL_OPERATORS) for e in source.get("matchExpressions").items())
    return LabelSelector((*equal, *lines))


def read_pod(source: Field) -> PodRecord:
    """Build a pod from its Kubernetes JSON.

    Raises:
        InputError: a field is missing or wrong; the error names it.
    """
    source.get("metadata").get("name").text()  # first, so that the error about a nameless pod is that one
    return read_instance(source, read_template(source))


def read_instance(source: Field, template: PodRecord) -> PodRecord:
    """Build a pod of which everything is known but what is its own: identity, node, phase and status."""
    metadata, status = source.get("metadata"), source.get("status")
    return replace(
        template,
        name=metadata.get("name").text(),
        uid=metadata.get("uid").text(""),
        node_name=intern(source.get("spec").get("nodeName").text("")),
        phase=intern(status.get("phase").text("")),
        terminating=metadata.get("deletionTimestamp").present,
        created_at=_seconds(metadata.get("creationTimestamp")),
        status=read_status(status),
    )


def read_template(source: Field) -> PodRecord:
    """Build what a pod has in common with the other pods of its owner; it has no name."""
    metadata, spec, status = source.get("metadata"), source.get("spec"), source.get("status")
    namespace = metadata.get("namespace").text("default")
    labels = metadata.get("labels").labels()
    affinity = spec.get("affinity")
    nodes, pods, anti = (affinity.get(k) for k in ("nodeAffinity", "podAffinity", "podAntiAffinity"))
    containers = (*spec.get("containers").items(), *spec.get("initContainers").items())
    owner = next(metadata.get("ownerReferences").items(), Field(source.where, "ownerReferences", None))
    return PodRecord(
        name="",
        namespace=namespace,
        labels=labels,
        priority=spec.get("priority").integer(0),
        owner_uid=owner.get("uid").text(""),
        resources=_resources(spec, status),
        node_selector=spec.get("nodeSelector").labels(),
        required_nodes=_required_nodes(nodes.get(REQUIRED)),
        preferred_nodes=_preferred_nodes(nodes.get(PREFERRED)),
        affinity=_required_pods(pods, namespace),
        anti_affinity=_required_pods(anti, namespace),
        preferred_affinity=_preferred_pods(pods, namespace),
        preferred_anti_affinity=_preferred_pods(anti, namespace),
        tolerations=tuple(_toleration(t) for t in spec.get("tolerations").items()),
        spread=tuple(_spread(c, labels) for c in spec.get("topologySpreadConstraints").items()),
        host_ports=tuple(port for c in containers if _stays(c) for port in _host_ports(c)),
        images=tuple(c.get("image").text("") for c in containers),
        volume_images=tuple(
            v.get("image").get("reference").text("")
            for v in spec.get("volumes").items()
            if v.get("image").present
        ),
        annotations=_annotations(metadata),
        scheduler_name=spec.get("schedulerName").text("") or "default-scheduler",
        owner_kind=owner.get("kind").text(""),
        owner_name=owner.get("name").text(""),
        gates=tuple(g.get("name").text() for g in spec.get("schedulingGates").items()),
    )


def read_status(status: Field) -> PodStatus:
    """Build what became of a pod from its `status`.

    Raises:
        InputError: a field is wrong; the error names it.
    """
    conditions = _conditions(status)
    nothing = Field(status.where, "conditions", None, status)
    scheduled, ready = conditions.get("PodScheduled", nothing), conditions.get("Ready", nothing)
    disruption = conditions.get("DisruptionTarget", nothing)
    placed, is_ready, disrupted = (c.get("status").text("") == "True" for c in (scheduled, ready, disruption))
    waiting = scheduled.get("status").text("") == "False"
    containers = list(status.get("containerStatuses").items())
    ends = [
        end for c in containers for state in ("state", "lastState")
        if (end := c.get(state).get("terminated")).present
    ]  # fmt: skip
    return PodStatus(
        ready=is_ready,
        scheduled_at=_seconds(scheduled.get("lastTransitionTime")) if placed else 0.0,
        started_at=_seconds(status.get("startTime")),
        ready_at=_seconds(ready.get("lastTransitionTime")) if is_ready else 0.0,
        ended_at=max((_seconds(end.get("finishedAt")) for end in ends), default=0.0),
        reason=status.get("reason").text(""),
        unschedulable=scheduled.get("message").text("") if waiting else "",
        unschedulable_at=_seconds(scheduled.get("lastTransitionTime")) if waiting else 0.0,
        disruption=disruption.get("reason").text("") if disrupted else "",
        nominated_node=status.get("nominatedNodeName").text(""),
        restarts=sum(c.get("restartCount").integer(0) for c in containers),
        oom_killed=any(end.get("reason").text("") == "OOMKilled" for end in ends),
        resize=_resize(conditions),
    )


def _resize(conditions: Mapping[str, Field]) -> str:
    """Where a resize in place stands: the reason, or that it is in progress; "" when there is none."""
    pending, running = conditions.get("PodResizePending"), conditions.get("PodResizeInProgress")
    reasons = [c.get("reason").text("") for c in (pending, running) if c is not None]
    if any(reasons):
        return next(filter(None, reasons))
    return "InProgress" if running is not None and running.get("status").text("") == "True" else ""


def _conditions(status: Field) -> dict[str, Field]:
    """An object's conditions by type, the first of each."""
    found: dict[str, Field] = {}
    for condition in status.get("conditions").items():
        found.setdefault(condition.get("type").text(""), condition)
    return found


def _annotations(metadata: Field) -> dict[str, str]:
    return {k: v for k, v in metadata.get("annotations").labels().items() if k.startswith(ANNOTATIONS)}


def _seconds(source: Field) -> float:
    """An RFC 3339 time as seconds since the epoch; 0 when absent."""
    text = source.text("")
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        source.refuse(f"is {text[:40]!r}", "write a time such as 2026-01-31T12:00:00Z")


def _resources(spec: Field, status: Field) -> PodResources:
    reported = {
        s.get("name").text(): s
        for key in ("containerStatuses", "initContainerStatuses")
        for s in status.get(key).items()
    }
    infeasible = any(
        c.get("type").text("") == "PodResizePending" and c.get("reason").text("") == "Infeasible"
        for c in status.get("conditions").items()
    )
    if not any(spec.get("containers").items()):
        spec.get("containers").refuse("holds no container", "give the pod at least one container")
    return PodResources(
        containers=tuple(_container(c, reported) for c in spec.get("containers").items()),
        init_containers=tuple(
            _container(c, reported if _stays(c) else {}) for c in spec.get("initContainers").items()
        ),
        overhead=spec.get("overhead").quantities(),
        pod_requests=spec.get("resources").get("requests").quantities(),
        pod_limits=spec.get("resources").get("limits").quantities(),
        resize_infeasible=infeasible,
    )


def _container(source: Field, reported: Mapping[str, Field]) -> ContainerResources:
    resources = source.get("resources")
    status = reported.get(source.get("name").text(""), Field(source.where, "resources", None, source))
    actuated = status.get("resources")
    return ContainerResources(
        requests=resources.get("requests").quantities(),
        limits=resources.get("limits").quantities(),
        sidecar=source.get("restartPolicy").text("") == "Always",
        actuated=actuated.get("requests").quantities() if actuated.present else None,
        allocated=status.get("allocatedResources").quantities(),
    )


def _stays(container: Field) -> bool:
    """Containers and sidecars keep host ports and are resized; an init container that ends is not."""
    return "initContainers[" not in container.path or container.get("restartPolicy").text("") == "Always"


def _host_ports(container: Field) -> list[HostPort]:
    return [
        HostPort(
            p.get("hostIP").text("") or "0.0.0.0",
            p.get("protocol").text("") or "TCP",
            p.get("hostPort").integer(0, 0, 65535),
        )
        for p in container.get("ports").items()
        if p.get("hostPort").integer(0) > 0
    ]


def _toleration(source: Field) -> Toleration:
    operator = source.get("operator").text("") or "Equal"
    if operator not in TOLERATION_OPERATORS:
        source.get("operator").refuse(f"is {operator!r}", f"write one of {' '.join(TOLERATION_OPERATORS)}")
    return Toleration(
        source.get("key").text(""), operator, source.get("value").text(""), source.get("effect").text("")
    )


def _requirement(source: Field, operators: tuple[str, ...]) -> Requirement:
    operator = source.get("operator").text()
    if operator not in operators:
        source.get("operator").refuse(f"is {operator!r}", f"write one of {' '.join(operators)}")
    return Requirement(source.get("key").text(), operator, source.get("values").texts())


def _node_term(source: Field) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        labels=tuple(_requirement(e, NODE_OPERATORS) for e in source.get("matchExpressions").items()),
        fields=tuple(_requirement(e, NODE_OPERATORS) for e in source.get("matchFields").items()),
    )


def _required_nodes(source: Field) -> tuple[NodeSelectorTerm, ...] | None:
    if not source.present:
        return None
    return tuple(_node_term(t) for t in source.get("nodeSelectorTerms").items())


def _preferred_nodes(source: Field) -> tuple[PreferredNodeTerm, ...] | None:
    if not source.present:
        return None
    return tuple(
        PreferredNodeTerm(t.get("weight").integer(None, 0, 100), _node_term(t.get("preference")))
        for t in source.items()
    )


def _required_pods(source: Field, namespace: str) -> tuple[PodTerm, ...]:
    return tuple(_pod_term(t, namespace, 0) for t in source.get(REQUIRED).items())


def _preferred_pods(source: Field, namespace: str) -> tuple[PodTerm, ...]:
    return tuple(
        _pod_term(t.get("podAffinityTerm"), namespace, t.get("weight").integer(None, 1, 100))
        for t in source.get(PREFERRED).items()
    )


def _pod_term(source: Field, namespace: str, weight: int) -> PodTerm:
    namespaces = frozenset(source.get("namespaces").texts())
    namespace_selector = read_label_selector(source.get("namespaceSelector"))
    if not namespaces and namespace_selector is None:
        namespaces = frozenset((namespace,))
    return PodTerm(
        topology_key=source.get("topologyKey").text(),
        selector=read_label_selector(source.get("labelSelector")),
        namespaces=namespaces,
        namespace_selector=namespace_selector,
        weight=weight,
    )


def _spread(source: Field, labels: Mapping[str, str]) -> SpreadConstraint:
    selector = read_label_selector(source.get("labelSelector"))
    keys = [key for key in source.get("matchLabelKeys").texts() if key in labels]
    if selector is not None and keys:
        same = (Requirement(key, "In", (labels[key],)) for key in keys)
        selector = LabelSelector((*selector.requirements, *same))
    when = source.get("whenUnsatisfiable").text()
    if when not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY):
        source.get("whenUnsatisfiable").refuse(f"is {when!r}", "write DoNotSchedule or ScheduleAnyway")
    return SpreadConstraint(
        topology_key=source.get("topologyKey").text(),
        max_skew=source.get("maxSkew").integer(None, 1, 2**31 - 1),
        when_unsatisfiable=when,
        selector=selector,
        min_domains=source.get("minDomains").integer(1, 1, 2**31 - 1),
        honor_affinity=source.get("nodeAffinityPolicy").text("") != "Ignore",
        honor_taints=source.get("nodeTaintsPolicy").text("") == "Honor",
    )
