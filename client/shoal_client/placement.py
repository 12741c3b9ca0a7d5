# SPDX-License-Identifier: Apache-2.0
"""What was decided on a gated pod, as its annotation keeps it, and what the pod had asked for before.

The annotation names the UID of the pod it was made for, so that one copied into a template, or left by an
earlier pod of the same name, means nothing.

A policy is trained on what pods ask for and answers with a share of it. A pod that was resized at its gate
comes to the scheduler with what it was granted; whoever shows it to the policy again, or records it, goes by
what it had asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shoal_common.cluster import F64, P_CPU, P_CPU_USE, P_MEMORY
from shoal_common.pods import PodRecord
from shoal_common.tables import App, pod_row

ANNOTATION = "shoal.dev/placement"
SHARES: Final = (0.1, 4.0)
"""What a SchedulingPolicy can grant at least and at most; an annotation that says other is not ours."""


class ContainerResize(msgspec.Struct, frozen=True):
    """New amounts of one container, as the resize patch takes them."""

    name: str
    resources: dict[str, dict[str, str]]


class Placing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision: the nodes' host names (best first; none: not narrowed) and the resize (none: kept)."""

    uid: str
    hosts: tuple[str, ...] = ()
    required: bool = False  # whether only these nodes, or the first preferred
    containers: tuple[ContainerResize, ...] = ()
    policy: str = ""  # digest of the policy that decided
    asked: dict[str, int] = {}  # the pod's cpu (millicores) and memory (bytes) before a resize

    def annotation(self) -> dict[str, str]:
        """The annotation that keeps it."""
        return {ANNOTATION: msgspec.json.encode(self).decode()}

    def resize_patch(self) -> list[dict[str, Any]]:
        """The containers of the resize patch."""
        return [msgspec.to_builtins(c) for c in self.containers]


def read_placing(annotations: Mapping[str, str], uid: str) -> Placing | None:
    """The decision in a pod's annotations; None without one that was made for this UID."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        placing = msgspec.json.decode(text, type=Placing)
    except msgspec.MsgspecError:
        return None
    return placing if placing.uid == uid else None


def granted(pod: PodRecord) -> tuple[float, float]:
    """What a pod has of the CPU and memory it asked for; (1, 1) unless it was resized at its gate."""
    placing = read_placing(pod.annotations, pod.uid)
    asked = placing.asked if placing is not None else {}
    return _share(pod, asked, "cpu"), _share(pod, asked, "memory")


def asked_row(pod: PodRecord, app: App | None = None) -> F64:
    """What a scheduler knows of a pod, f64[POD_COLUMNS], with what it asked for in place of what it has."""
    row, (cpu, memory) = pod_row(pod, app), granted(pod)
    row[P_CPU], row[P_MEMORY] = round(row[P_CPU] / cpu), round(row[P_MEMORY] / memory)
    if app is None or app.cpu_use is None:  # then its use is taken to be its request
        row[P_CPU_USE] /= cpu
    return row


def _share(pod: PodRecord, asked: Mapping[str, int], resource: str) -> float:
    before, now = asked.get(resource, 0), pod.requests.get(resource, 0)
    share = now / before if before > 0 else 1.0
    return share if SHARES[0] <= share <= SHARES[1] else 1.0
