# SPDX-License-Identifier: Apache-2.0
"""Who decides on gated pods, and the patch that takes the gate off one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from shoal_client.actuate.narrowing import narrowed
from shoal_client.actuate.webhook import GATE
from shoal_client.placement import Placing
from shoal_common.pods import PodRecord


class Placer(Protocol):
    """Decides on gated pods."""

    def place(self, pod: PodRecord, raw: Mapping[str, Any]) -> Placing | None:
        """The decision on a pod, given its API object as read just now; None to let it go untouched.

        Room for the pod may be held back from other decisions until it is bound, or `forget` is called.
        """

    def forget(self, uid: str) -> None:
        """The decision on this pod will not be carried out."""


def is_gated(raw: Mapping[str, Any]) -> bool:
    """Whether a pod (API object) carries our gate and is not on its way out."""
    gates = raw["spec"].get("schedulingGates") or ()
    return not raw["metadata"].get("deletionTimestamp") and any(g["name"] == GATE for g in gates)


def free_patch(raw: Mapping[str, Any], placing: Placing | None) -> dict[str, Any]:
    """The merge patch that takes our gate off a pod and, with a decision, narrows its nodes."""
    spec: dict[str, Any] = {
        "schedulingGates": [g for g in raw["spec"].get("schedulingGates") or () if g["name"] != GATE]
    }
    if placing is None:
        return {"spec": spec}
    if placing.hosts:
        spec["affinity"] = narrowed(raw["spec"].get("affinity"), placing.hosts, placing.required)
    return {"metadata": {"annotations": placing.annotation()}, "spec": spec}
