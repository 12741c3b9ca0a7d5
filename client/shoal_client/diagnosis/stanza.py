# SPDX-License-Identifier: Apache-2.0
"""A lint of kube-scheduler's configuration: what in its extenders would harm scheduling or do nothing.

Source: kube-scheduler v1.36.2, extender.go and the validation of kubescheduler.config.k8s.io/v1; the
measurements behind the rules are in docs/extender.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal_client.diagnosis.findings import Finding, Level

API_VERSION, KIND = "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"
VERBS = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
TRANSPORT = ("urlPrefix", "enableHTTPS", "tlsConfig", "httpTimeout")
SWITCHES = ("enableHTTPS", "nodeCacheCapable", "ignorable")
KNOWN = {*VERBS, *TRANSPORT, *SWITCHES, "weight", "managedResources"}
MOST_DEFAULT_POINTS = 1400
"""What the default profile's plugins give a node at most; an extender gives score * weight * 10."""

ALL_NODES = 100
"""Clusters up to this size are never sampled."""

DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h)")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def lint(document: object, nodes: int = 0, timeout_ms: int = 100, score_scale: int = 10) -> Iterator[Finding]:
    """Findings about a decoded configuration; `nodes` 0 where not known.

    `timeout_ms` and `score_scale` are those of the policies in force (fallback.timeoutMs, scoreScale).
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        yield _error("this is no KubeSchedulerConfiguration", "give the file of kube-scheduler's --config")
        return
    if document.get("apiVersion") != API_VERSION:
        yield _error(f"apiVersion {document.get('apiVersion')!r} is not served", f"write {API_VERSION}")
    listed = document.get("extenders") or []
    extenders = [e for e in listed if isinstance(e, Mapping)] if isinstance(listed, list) else []
    if not listed:
        yield _error("no extender is configured", "add the stanza of deploy/kube-scheduler/extender.yaml")
    elif not isinstance(listed, list) or len(extenders) < len(listed):
        yield _error("extenders is no list of mappings", "write it as in deploy/kube-scheduler/extender.yaml")
    if sum(bool(e.get("bindVerb")) for e in extenders) > 1:
        yield _error("more than one extender has bindVerb", "keep one; kube-scheduler refuses to start")
    for extender in extenders:
        yield from _extender(extender, timeout_ms, score_scale, _scores_alone(document))
    yield from _sampling(document, nodes)


def seconds(duration: str) -> float | None:
    """A Go duration ("200ms", "1m30s") in seconds; None where it is none."""
    if duration == "0":
        return 0.0
    if not re.fullmatch(f"(?:{DURATION.pattern})+", duration):
        return None
    parts = DURATION.findall(duration)
    return sum(float(p.rstrip("nuµmsh")) * SECONDS[p[len(p.rstrip("nuµmsh")) :]] for p in parts)


def _error(message: str, remedy: str) -> Finding:
    return Finding("scheduler", Level.ERROR, message, remedy)


def _warning(message: str, remedy: str) -> Finding:
    return Finding("scheduler", Level.WARNING, message, remedy)


def _extender(
    extender: Mapping[str, Any], timeout_ms: int, score_scale: int, alone: bool
) -> Iterator[Finding]:
    at = str(extender.get("urlPrefix") or "extender without urlPrefix")
    found = [
        *_fields(extender),
        *_survival(extender),
        *_timeout(extender, timeout_ms),
        *_points(extender, score_scale, alone),
        *_verbs(extender),
        *_transport(extender),
    ]
    yield from (Finding(f.check, f.level, f"{at}: {f.message}", f.remedy) for f in found)
    if not any(f.level is Level.ERROR for f in found):
        yield Finding("scheduler", Level.OK, f"{at}: cannot keep a pod from being scheduled")


def _fields(extender: Mapping[str, Any]) -> Iterator[Finding]:
    prefix = str(extender.get("urlPrefix") or "")
    if not prefix:
        yield _error("urlPrefix is missing", "write the address that `shoal client serve` listens on")
    elif not prefix.startswith(("http://", "https://")):
        yield _error("urlPrefix is no URL: Shoal is never asked", "write http://HOST:PORT")
    for key in sorted(set(map(str, extender)) - KNOWN):
        yield _error(f"{key} is not a field of an extender", "kube-scheduler would not start; remove it")
    for key in SWITCHES:
        if not isinstance(extender.get(key, False), bool | None):
            yield _error(
                f"{key} is neither true nor false", f"kube-scheduler would not start; write {key}: true"
            )
    if not isinstance(extender.get("tlsConfig"), Mapping | None):
        yield _error(
            "tlsConfig is no mapping", "kube-scheduler would not start; write tlsConfig: {caFile: FILE}"
        )
    yield from _managed(extender.get("managedResources") or [])


def _managed(resources: object) -> Iterator[Finding]:
    remedy = "name an extended resource such as nvidia.com/gpu, or leave managedResources out"
    if not isinstance(resources, list):
        yield _error("managedResources is no list", remedy)
        return
    for managed in resources:
        name = str(managed.get("name", "")) if isinstance(managed, Mapping) else ""
        if "/" not in name:
            yield _error(f"managedResources {name!r} is no extended resource", remedy)


def _survival(extender: Mapping[str, Any]) -> Iterator[Finding]:
    if extender.get("nodeCacheCapable") is not True:
        message = "nodeCacheCapable is not true: whole nodes are sent, and filterVerb breaks resource scores"
        yield _error(message, "set nodeCacheCapable: true")
    if extender.get("ignorable") is not True:
        blocking = any(extender.get(verb) for verb in ("filterVerb", "bindVerb"))
        message = "ignorable is not true: while Shoal is down " + (
            "no pod is scheduled"
            if blocking
            else "only its scores are missing, but a verb added later would block"
        )
        yield (_error if blocking else _warning)(message, "set ignorable: true")


def _timeout(extender: Mapping[str, Any], timeout_ms: int) -> Iterator[Finding]:
    text = str(extender.get("httpTimeout") or "")
    if text in ("", "0", "0s"):
        message = "httpTimeout is not set: a silent extender costs every pod 5 s"
        yield _error(message, "set httpTimeout: 200ms")
        return
    limit = seconds(text)
    if limit is None:
        yield _error(f"httpTimeout {text!r} is no duration", "set httpTimeout: 200ms")
    elif limit * 1000 <= timeout_ms:
        message = f"httpTimeout {text} is not above fallback.timeoutMs {timeout_ms}: late answers are errors"
        yield _error(message, "raise httpTimeout or lower fallback.timeoutMs")
    elif limit > 1:
        message = f"httpTimeout {text}: a silent extender costs every pod that long, up to twice"
        yield _warning(message, "set httpTimeout: 200ms")


def _points(extender: Mapping[str, Any], score_scale: int, alone: bool) -> Iterator[Finding]:
    if not extender.get("prioritizeVerb"):
        yield _error(
            "prioritizeVerb is missing: scores are never asked for", "set prioritizeVerb: prioritize"
        )
        return
    weight = extender.get("weight") or 0
    if not isinstance(weight, int) or weight < 1:
        yield _error("weight must be a whole number above 0", "set weight: 15")
        return
    points = score_scale * weight * 10
    if points < MOST_DEFAULT_POINTS and not alone:
        message = (
            f"weight {weight} gives at most {points} points against {MOST_DEFAULT_POINTS} of the plugins"
        )
        yield _warning(message, "set weight: 15, or use a profile without score plugins")


def _scores_alone(document: Mapping[str, Any]) -> bool:
    """Whether a profile has no score plugins, so that the extender's points are all there are."""
    for profile in document.get("profiles") or ():
        score = ((profile.get("plugins") or {}).get("score") or {}).get("disabled") or ()
        if any(plugin.get("name") == "*" for plugin in score):
            return True
    return False


def _verbs(extender: Mapping[str, Any]) -> Iterator[Finding]:
    if extender.get("filterVerb"):
        message = "filterVerb: a pod rejected on every node may wait up to five minutes for another try"
        yield _warning(message, "leave it out unless masks must be hard")
    if extender.get("bindVerb"):
        yield _warning("bindVerb puts Shoal into the critical path", "leave it out; binds are watched anyway")
    if extender.get("preemptVerb"):
        yield _warning("preemptVerb: Shoal refuses preemption unless told otherwise", "leave it out")


def _transport(extender: Mapping[str, Any]) -> Iterator[Finding]:
    given = extender.get("tlsConfig")
    tls = given if isinstance(given, Mapping) else {}
    if extender.get("enableHTTPS") and not (tls.get("caFile") or tls.get("caData")):
        message = "enableHTTPS without tlsConfig.caFile: kube-scheduler verifies nothing"
        yield _error(message, "give tlsConfig.caFile")
    https = str(extender.get("urlPrefix") or "").startswith("https:")
    if https and not extender.get("enableHTTPS"):
        yield _error("urlPrefix is https but enableHTTPS is not true", "set enableHTTPS: true")


def _sampling(document: Mapping[str, Any], nodes: int) -> Iterator[Finding]:
    """kube-scheduler shows only a sample of a large cluster's nodes (decided per profile, else globally)."""
    settings = [document, *(p for p in document.get("profiles") or () if isinstance(p, Mapping))]
    if nodes > ALL_NODES and not any(s.get("percentageOfNodesToScore") for s in settings):
        percent = max(5, 50 - nodes // 125)
        shown = max(ALL_NODES, nodes * percent // 100)
        message = f"{shown} of {nodes} nodes are shown for each pod (percentageOfNodesToScore is not set)"
        yield Finding("scheduler", Level.OK, message)
