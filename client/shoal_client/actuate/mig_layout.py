# SPDX-License-Identifier: Apache-2.0
"""The slow accelerator action: another MIG layout for idle devices, by the label of NVIDIA's MIG manager.

One change at a time in the whole cluster: write the node label `nvidia.com/mig.config`, wait until the
manager reports `nvidia.com/mig.config.state`. Success ends it. `failed`, or no answer in time, ends it too:
the node is marked in its annotation `shoal.dev/mig-layout`, reported, and never touched again until
somebody removes the mark; a manager that wedged is not helped by trying again (mig-parted#485). The same
annotation carries a change in progress over a crash of ours. How a change is chosen is in
`mig_planning.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events, Regarding
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.locks import Locks
from shoal_client.actuate.mig_catalogue import Catalogue
from shoal_client.actuate.mig_planning import (
    CONFIG,
    STATE,
    Proposal,
    mig_node,
    propose,
    waiting_slices,
)
from shoal_client.kube.api import NODES, Api
from shoal_client.metrics import ACTUATIONS
from shoal_client.policies.spec import AcceleratorAction
from shoal_client.state.live import LiveCluster
from shoal_common.pods import NodeRecord, PodRecord

MARK = "shoal.dev/mig-layout"
PENDING, SUCCESS, FAILED = "pending", "success", "failed"


PATIENCE_SECONDS = 120.0
"""The same change must make sense for so long before it is made."""


class MigLayout:
    """Proposes, applies and follows layout changes; `step` from one thread."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        authority: Authority,
        catalogue: Callable[[], Catalogue],
        locks: Locks,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._cluster, self._authority = api, leader, cluster, authority
        self._catalogue, self._locks, self._events, self._clock = catalogue, locks, events, clock
        self._bounds = AcceleratorAction()  # of the policy that asked last
        self._waiting_since: dict[str, float] = {}  # node -> when we first saw its change in progress
        self._wanted: tuple[Proposal | None, float] = (None, 0.0)
        self._rest_until = clock()

    def step(self) -> None:
        """Follow the change in progress, or start one."""
        nodes = list(self._cluster.nodes.values())
        names = {node.name for node in nodes}
        self._waiting_since = {n: since for n, since in self._waiting_since.items() if n in names}
        for node in nodes:
            if _mark(node).get("state") == PENDING:
                self._follow(node)
        busy = bool(self._waiting_since) or any(_busy(node) for node in nodes)
        if busy or self._clock() < self._rest_until:
            return
        proposal = self._proposal(nodes)
        before, since = self._wanted
        if (
            proposal is None
            or before is None
            or (proposal.node, proposal.config) != (before.node, before.config)
        ):
            self._wanted = (proposal, self._clock())
        elif self._clock() - since >= PATIENCE_SECONDS and self._leader.is_leader():
            self._start(proposal, self._cluster.nodes[proposal.node])

    def _proposal(self, nodes: list[NodeRecord]) -> Proposal | None:
        pods: dict[str, list[PodRecord]] = {}
        for pod in list(self._cluster.pods.values()):
            if not pod.finished:
                pods.setdefault(pod.node_name, []).append(pod)
        wanted = waiting_slices(p for p in pods.pop("", []) if self._asks(p))
        if not any(wanted):
            return None
        catalogue = self._catalogue()
        free = [n for n in nodes if not _mark(n) or _mark(n).get("state") == SUCCESS]
        known = (mig_node(n, pods.get(n.name, ()), catalogue) for n in free if not self._locks.holder(n.name))
        return propose([n for n in known if n is not None], catalogue, wanted)

    def _asks(self, pod: PodRecord) -> bool:
        """Whether a waiting pod counts, and note the bounds of its policy."""
        actions = self._authority.actions(pod) if not pod.gates and not pod.terminating else None
        if actions is None or not actions.accelerator.enabled:
            return False
        self._bounds = actions.accelerator
        return True

    def _start(self, proposal: Proposal, node: NodeRecord) -> None:
        """Write the label; the state is reset with it, so that an old `success` is not taken for ours."""
        self._wanted = (None, self._clock())
        if not self._locks.acquire(node.name, node.uid, self._bounds.timeout_seconds):
            return
        raw = self._api.get(NODES, node.name)
        if raw["metadata"].get("labels", {}).get(CONFIG) != node.labels.get(CONFIG):
            return  # somebody else changes it; our picture of the node is old
        mark = {"state": PENDING, "config": proposal.config, "previous": node.labels.get(CONFIG, "")}
        self._write(raw, mark, {CONFIG: proposal.config, STATE: PENDING})
        self._waiting_since[node.name] = self._clock()
        self._report(node, "started", f"MIG layout {proposal.config} for {proposal.gain} waiting slices")

    def _follow(self, node: NodeRecord) -> None:
        since = self._waiting_since.setdefault(node.name, self._clock())
        mark, state = _mark(node), node.labels.get(STATE)
        if node.labels.get(CONFIG) != mark.get("config"):
            self._finish(node, FAILED, "the label was changed by somebody else")
        elif state == SUCCESS:
            self._finish(node, SUCCESS, f"MIG layout {mark.get('config')} is in place")
        elif state == FAILED:
            self._finish(node, FAILED, "the MIG manager reports failed")
        elif self._clock() - since > self._bounds.timeout_seconds:
            self._finish(node, FAILED, f"no answer of the MIG manager, state {state}")

    def _finish(self, node: NodeRecord, state: str, note: str) -> None:
        if not self._leader.is_leader():
            return
        raw = self._api.get(NODES, node.name)
        self._waiting_since.pop(node.name, None)
        if raw["metadata"].get("annotations", {}).get(MARK) != node.annotations.get(MARK):
            return  # noted already; our picture of the node is old
        self._write(raw, {**_mark(node), "state": state}, {})
        self._locks.release(node.uid)
        self._rest_until = self._clock() + self._bounds.rest_seconds
        self._report(node, state, note)

    def _write(self, raw: Mapping[str, Any], mark: Mapping[str, str], labels: Mapping[str, str]) -> None:
        metadata = {
            "resourceVersion": raw["metadata"]["resourceVersion"],
            "annotations": {MARK: json.dumps(mark, sort_keys=True)},
            "labels": dict(labels),
        }
        self._api.patch(NODES, raw["metadata"]["name"], {"metadata": metadata})

    def _report(self, node: NodeRecord, result: str, note: str) -> None:
        ACTUATIONS.labels("mig_layout", result).inc()
        reason = {"started": "MigLayoutStarted", SUCCESS: "MigLayoutApplied"}.get(result, "MigLayoutFailed")
        about = Regarding("v1", "Node", node.name, node.uid)
        self._events.emit(about, reason, "MigLayout", note, warning=result == FAILED)


def _mark(node: NodeRecord) -> Mapping[str, str]:
    """What we noted on a node; an unreadable note counts as failed: hands off."""
    text = node.annotations.get(MARK)
    if text is None:
        return {}
    try:
        mark = json.loads(text)
    except ValueError:
        return {"state": FAILED}
    return mark if isinstance(mark, dict) and "state" in mark else {"state": FAILED}


def _busy(node: NodeRecord) -> bool:
    """Whether a node's layout is being changed, by us or by anybody."""
    return _mark(node).get("state") == PENDING or node.labels.get(STATE) in (PENDING, "rebooting")
