# SPDX-License-Identifier: Apache-2.0
"""What was decided on a gated pod, as it is kept in the pod's annotation until it is carried out.

The annotation names the UID of the pod it was made for, so that one copied into a template, or left by an
earlier pod of the same name, means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from shoal_client.actuate.narrowing import narrowed
from shoal_client.actuate.webhook import GATE
from shoal_common.pods import PodRecord

ANNOTATION = "shoal.dev/placement"


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

    def annotation(self) -> dict[str, str]:
        """The annotation that keeps it."""
        return {ANNOTATION: msgspec.json.encode(self).decode()}

    def resize_patch(self) -> list[dict[str, Any]]:
        """The containers of the resize patch."""
        return [msgspec.to_builtins(c) for c in self.containers]


class Placer(Protocol):
    """Decides on gated pods."""

    def place(self, pod: PodRecord, raw: Mapping[str, Any]) -> Placing | None:
        """The decision on a pod, given its API object as read just now; None to let it go untouched.

        Room for the pod may be held back from other decisions until it is bound, or `forget` is called.
        """

    def forget(self, uid: str) -> None:
        """The decision on this pod will not be carried out."""


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
