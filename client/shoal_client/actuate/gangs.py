# SPDX-License-Identifier: Apache-2.0
"""Which pods belong together: released all at once or not at all.

A gang is named by the label `shoal.dev/gang`, the coscheduling plugin's `scheduling.x-k8s.io/pod-group` or
Volcano's annotation `scheduling.k8s.io/group-name`, and its size by the annotation `shoal.dev/gang-size` or
Volcano's `scheduling.volcano.sh/group-min-member`. Members are counted among the live pods themselves, never
read from a PodGroup's status, which may be that of an earlier run (volcano#6010).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal_common.pods import PodRecord

NAMES = ("shoal.dev/gang", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name")
SIZES = ("shoal.dev/gang-size", "scheduling.volcano.sh/group-min-member")
LARGEST_GANG = 10_000


@dataclass(frozen=True, slots=True)
class Gang:
    """Identity of a gang."""

    namespace: str
    name: str


def gang_of(pod: PodRecord) -> Gang | None:
    """The gang a pod belongs to, None for a pod of its own."""
    for key in NAMES:
        name = pod.labels.get(key) or pod.annotations.get(key)
        if name:
            return Gang(pod.namespace, name)
    return None


def gang_size(members: Iterable[PodRecord]) -> int | None:
    """How many pods the gang needs: the largest that a member names, None where none does."""
    named = (member.annotations.get(key) or member.labels.get(key) for member in members for key in SIZES)
    sizes = [int(size) for size in named if size is not None and size.isdecimal() and len(size) < 6]
    return max((size for size in sizes if 0 < size <= LARGEST_GANG), default=None)


def complete(members: Iterable[PodRecord]) -> bool:
    """Whether enough live members are there: finished and terminating ones are of an earlier run."""
    live = {member.uid: member for member in members if not member.finished and not member.terminating}
    size = gang_size(live.values())
    return size is not None and len(live) >= size
