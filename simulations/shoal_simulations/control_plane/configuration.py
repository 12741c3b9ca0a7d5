# SPDX-License-Identifier: Apache-2.0
"""A KubeSchedulerConfiguration file as the virtual scheduler understands it: profiles and extenders.

Of profiles: the name, percentageOfNodesToScore, and whether all score plugins are switched off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal_common.errors import InputError
from shoal_common.kube.profile import DEFAULT_FILTERS, Profile, default_profile
from shoal_simulations.control_plane.extenders import DEFAULT_TIMEOUT_SECONDS, Stanza

DEFAULT = "default-scheduler"
Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a scheduler runs with."""

    extenders: tuple[Stanza, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=lambda: {DEFAULT: default_profile()})
    percentage: int = 0
    """percentageOfNodesToScore; 0 is the adaptive default."""


def read_configuration(path: Path) -> Configuration:
    """Read a KubeSchedulerConfiguration in YAML or JSON.

    Raises:
        InputError: no such file, no YAML, or a duration that cannot be read.
    """
    try:
        document = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise InputError(str(path), "file", "cannot be read", "give a scheduler configuration") from error
    except msgspec.DecodeError as error:
        raise InputError(str(path), "file", f"is no YAML: {error}", "write valid YAML") from error
    profiles = document.get("profiles") or [{}]
    percentages = [p.get("percentageOfNodesToScore") for p in (document, *profiles)]
    return Configuration(
        extenders=tuple(_stanza(entry) for entry in document.get("extenders") or ()),
        profiles={profile.get("schedulerName", DEFAULT): _profile(profile) for profile in profiles},
        percentage=next((p for p in percentages if p), 0),
    )


def _profile(entry: Content) -> Profile:
    disabled = ((entry.get("plugins") or {}).get("score") or {}).get("disabled") or ()
    if any(plugin["name"] == "*" for plugin in disabled):
        return Profile(DEFAULT_FILTERS, ())
    return default_profile()


def _stanza(entry: Content) -> Stanza:
    tls = entry.get("tlsConfig") or {}
    return Stanza(
        url_prefix=entry["urlPrefix"],
        filter_verb=entry.get("filterVerb", ""),
        prioritize_verb=entry.get("prioritizeVerb", ""),
        bind_verb=entry.get("bindVerb", ""),
        weight=entry.get("weight", 0),
        timeout_seconds=_seconds(entry.get("httpTimeout", "0s")),
        node_cache_capable=entry.get("nodeCacheCapable", False),
        ignorable=entry.get("ignorable", False),
        managed_resources=tuple(r["name"] for r in entry.get("managedResources") or ()),
        ca_file=tls.get("caFile", ""),
        cert_file=tls.get("certFile", ""),
        key_file=tls.get("keyFile", ""),
    )


def _seconds(duration: str) -> float:
    """A Go duration of one unit; 0 is the default of five seconds."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0)):
        if duration.endswith(unit):
            return float(duration.removesuffix(unit)) * factor or DEFAULT_TIMEOUT_SECONDS
    raise InputError("extender", "httpTimeout", f"is {duration!r}", "write a duration such as 200ms")
