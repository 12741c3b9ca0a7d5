# SPDX-License-Identifier: Apache-2.0
"""The MIG configurations an operator offers: mig-parted's `config.yaml`, expanded for a node's devices.

The file (ConfigMap of the GPU operator) names configurations; each lists entries of devices (`all` or
indices), whether MIG is on, and how many instances of each profile. Only these names can be written to the
label `nvidia.com/mig.config`, so they are the whole action space. A configuration that names a profile we do
not know, or more than fits on one device, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal_common.accelerators.mig import PROFILES, placeable

Counts = tuple[int, ...]
"""Instances of each profile, in the order of PROFILES."""

NOTHING: Counts = (0,) * len(PROFILES)
_INDEX = {profile.name: i for i, profile in enumerate(PROFILES)}


@dataclass(frozen=True, slots=True)
class MigEntry:
    """What some devices are cut into; `devices` None means all."""

    devices: frozenset[int] | None
    counts: Counts


Catalogue = Mapping[str, tuple[MigEntry, ...]]


def read_catalogue(document: Any) -> Catalogue:
    """The usable configurations of a parsed `config.yaml`; none of a document of another shape."""
    configs = document.get("mig-configs") if isinstance(document, Mapping) else None
    if not isinstance(configs, Mapping):
        return {}
    read = {str(name): _entries(entries) for name, entries in configs.items()}
    return {name: entries for name, entries in sorted(read.items()) if entries is not None}


def _entries(source: Any) -> tuple[MigEntry, ...] | None:
    if not isinstance(source, Sequence) or isinstance(source, str):
        return None
    entries = [_entry(e) for e in source]
    return tuple(e for e in entries if e is not None) if None not in entries else None


def _entry(source: Any) -> MigEntry | None:
    if not isinstance(source, Mapping) or "device-filter" in source:
        return None  # a filter by PCI id cannot be judged from the API
    wanted, devices = source.get("mig-devices") or {}, source.get("devices")
    if not set(wanted) <= set(_INDEX) or not all(isinstance(n, int) and n >= 0 for n in wanted.values()):
        return None
    counts = [0] * len(PROFILES)
    for name, number in wanted.items():
        counts[_INDEX[name]] = number
    if not placeable(counts):
        return None
    if devices == "all":
        return MigEntry(None, tuple(counts))
    if isinstance(devices, Sequence) and all(isinstance(d, int) for d in devices):
        return MigEntry(frozenset(devices), tuple(counts))
    return None


def on_node(entries: tuple[MigEntry, ...], devices: int) -> tuple[Counts, ...]:
    """What each of a node's devices is cut into; a device that no entry names is left whole."""
    cut = [NOTHING] * devices
    for entry in entries:
        for device in range(devices):
            if entry.devices is None or device in entry.devices:
                cut[device] = entry.counts
    return tuple(cut)


def homogeneous(cut: Sequence[Counts]) -> bool:
    """Whether all devices hold instances of one and the same profile: all that strategy `single` allows."""
    used = {i for counts in cut for i, number in enumerate(counts) if number}
    return len(used) == 1 and len(set(cut)) == 1
