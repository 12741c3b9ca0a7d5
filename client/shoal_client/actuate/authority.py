# SPDX-License-Identifier: Apache-2.0
"""What may be done to a pod: the action bounds of the policy that serves it, and nothing without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from shoal_client.policies.registry import AppliedPolicy, Policies
from shoal_client.policies.spec import Actions, Mode
from shoal_common.pods import PodRecord

NamespaceLabels = Callable[[str], Mapping[str, str]]


@final
class Authority:
    """Reads the policies at every question, so that a changed bound holds from the next action on."""

    def __init__(self, policies: Policies, namespace_labels: NamespaceLabels, granted: bool = True) -> None:
        """Without being `granted` nothing is allowed, whatever policies say."""
        self._policies, self._namespace_labels, self._granted = policies, namespace_labels, granted

    def policy(self, pod: PodRecord) -> AppliedPolicy | None:
        """The policy that serves a pod: Active, or Canary with the pod's owner in its share."""
        policy = self._policies.for_pod(pod, self._namespace_labels(pod.namespace)) if self._granted else None
        return policy if policy is not None and policy.serves(pod) else None

    def actions(self, pod: PodRecord) -> Actions | None:
        """The bounds of what may be done to a pod; None when nothing may."""
        policy = self.policy(pod)
        return policy.spec.actions if policy is not None else None

    def enabled(self, action: Callable[[Actions], bool]) -> bool:
        """Whether any policy that serves pods has an action switched on: without one nothing is even read."""
        if not self._granted:
            return False
        applied = (entry.applied for entry in self._policies.entries().values())
        return any(
            a is not None and a.mode in (Mode.ACTIVE, Mode.CANARY) and action(a.spec.actions) for a in applied
        )

    def places(self, pod: PodRecord) -> bool:
        """Whether a pod is to be gated, resized and placed."""
        actions = self.actions(pod)
        return actions is not None and (actions.cpu_quota.enabled or actions.memory_quota.enabled)
