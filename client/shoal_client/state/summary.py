# SPDX-License-Identifier: Apache-2.0
"""A cluster's free room in a form that no placement can be misled by: what fits on one node, not sums.

Sums over nodes hide fragmentation (karmada#1685 and others): eight nodes with one free GPU each hold no pod
of four. So the summary is the set of single nodes' free rooms that no other node's room exceeds in all
resources. What is not known is not infinite: an unsynced cluster answers None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from shoal_client.state.node_state import NodeState

MOST_ROOMS: Final = 64
"""Beyond them the smallest are left out: the summary then denies what might fit, never the reverse."""

Room = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """Free room of single ready nodes, `rooms`; cpu in millicores, others in bytes or counts."""

    synced: bool
    nodes: int
    rooms: tuple[Room, ...]

    def holds(self, requests: Room) -> bool | None:
        """Whether one node has room for these requests and a pod more; None where it is not known."""
        if not self.synced:
            return None
        wanted = {**requests, "pods": 1}
        return any(all(amount <= room.get(name, 0) for name, amount in wanted.items()) for room in self.rooms)


def rooms_of(states: Iterable[NodeState]) -> list[Room]:
    """What is free on each node; nodes that are not ready or cordoned hold nothing."""
    return [room for state in states if (room := _room(state))]


def summarise(synced: bool, nodes: int, rooms: Iterable[Room]) -> Summary:
    """Keep the rooms that no other exceeds in everything; of too many, the largest in each resource first."""
    unique = [dict(room) for room in {tuple(sorted(room.items())) for room in rooms}]
    largest = [
        max(unique, key=lambda room, name=name: room.get(name, 0))  # type: ignore[misc]
        for name in sorted({name for room in unique for name in room})
    ]
    unique.sort(key=lambda room: (room.get("cpu", 0), sorted(room.items())), reverse=True)
    kept: list[Room] = []
    for room in (*largest, *unique):
        if len(kept) < MOST_ROOMS and not any(_within(room, other) for other in kept):
            kept = [other for other in kept if not _within(other, room)]
            kept.append(room)
    return Summary(synced, nodes, tuple(kept))


def _room(state: NodeState) -> dict[str, int]:
    """What is free on a node; what nothing is free of is left out."""
    record = state.record
    if record is None or not record.ready or record.unschedulable:
        return {}
    held = {**state.requested, "pods": len(state.pods) + len(state.reserved)}
    free = {name: amount - held.get(name, 0) for name, amount in record.allocatable.items()}
    return {name: amount for name, amount in free.items() if amount > 0} if free.get("pods", 0) > 0 else {}


def _within(room: Room, other: Room) -> bool:
    return all(amount <= other.get(name, 0) for name, amount in room.items())
