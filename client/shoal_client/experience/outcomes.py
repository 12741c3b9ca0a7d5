# SPDX-License-Identifier: Apache-2.0
"""What became of a pod, as its status says: the reasons that kubelet, scheduler and controllers write.

Sources: pkg/kubelet (lifecycle/predicate.go, cm/admission, eviction, nodeshutdown), api/core/v1 for the
reasons of the condition DisruptionTarget.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from shoal_client.experience.records import (
    DELETED,
    EVICTED,
    FAILED,
    OOM,
    PREEMPTED,
    REJECTED,
    SUCCEEDED,
    Result,
)
from shoal_client.state.node_health import rejected_by_kubelet
from shoal_common.pods import PodRecord

PREEMPTION: Final = "PreemptionByScheduler"
EVICTION_REASONS: Final = frozenset(("Evicted", "NodeLost", "NodeShutdown", "Terminated", "Preempting"))


def ended(pod: PodRecord) -> tuple[str, str]:
    """Outcome and reason of a pod that has finished, or that was deleted while it was as given here."""
    status = pod.status
    reason = status.disruption or status.reason
    if pod.phase == "Succeeded":
        return SUCCEEDED, reason
    if rejected_by_kubelet(pod):
        return REJECTED, status.reason
    if status.disruption == PREEMPTION:
        return PREEMPTED, reason
    if status.disruption or status.reason in EVICTION_REASONS:
        return EVICTED, reason
    if pod.phase == "Failed" and not pod.terminating:
        return (OOM if status.oom_killed else FAILED), reason
    return DELETED, reason


def seconds_run(pod: PodRecord) -> float:
    """How long a pod ran, by the API's own clock; NaN where it does not say."""
    status = pod.status
    return status.ended_at - status.started_at if 0 < status.started_at < status.ended_at else math.nan


def timed(result: Result, pod: PodRecord) -> Result:
    """A result with the times of the pod's status."""
    status = pod.status
    return replace(result, started_at=status.started_at, ready_at=status.ready_at, ended_at=status.ended_at)


def within(slowdown: float, allowed: float) -> bool | None:
    """Whether a slowdown stays within what the pod allows; None where it is not known."""
    return None if math.isnan(slowdown) else slowdown <= allowed
