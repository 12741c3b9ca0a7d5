# SPDX-License-Identifier: Apache-2.0
"""What a client may ask before it asks for objects: version, groups, resources, health, its own rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal_simulations.control_plane.registry import Registry
from shoal_simulations.control_plane.resources import Resource

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
HEALTH = ("/healthz", "/livez", "/readyz")
REVIEW_GROUP = "authorization.k8s.io"


def document(registry: Registry, path: str) -> bytes | None:
    """The document at a path that names no object; None where there is none."""
    path = path.rstrip("/")
    if path in HEALTH:
        return b"ok"
    content = _content(registry, path)
    return None if content is None else msgspec.json.encode(content)


def _content(registry: Registry, path: str) -> dict[str, Any] | None:
    parts = path.strip("/").split("/")
    if parts == ["version"]:
        return dict(VERSION)
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["api", "v1"]:
        return _resources(registry, "", "v1")
    return _group_content(registry, parts) if parts[0] == "apis" else None


def _group_content(registry: Registry, parts: Sequence[str]) -> dict[str, Any] | None:
    groups: dict[str, list[str]] = {REVIEW_GROUP: ["v1"]}
    for group, version, _ in registry.resources:
        versions = groups.setdefault(group, [])
        if version not in versions:
            versions.append(version)
    match parts:
        case ["apis"]:
            listed = [_group(group, versions) for group, versions in groups.items() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
        case ["apis", group, version] if version in groups.get(group, ()):
            return _resources(registry, group, version)
    return None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(registry: Registry, group: str, version: str) -> dict[str, Any]:
    found = [r for r in registry.resources.values() if (r.group, r.version) == (group, version)]
    listed = [entry for resource in found for entry in _entries(resource)]
    if group == REVIEW_GROUP:
        listed.append(
            {"name": "selfsubjectaccessreviews", "kind": "SelfSubjectAccessReview", "namespaced": False}
            | {"singularName": "", "verbs": ["create"]}
        )
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}


def _entries(resource: Resource) -> list[dict[str, Any]]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    common = {"namespaced": resource.namespaced, "kind": resource.kind, "singularName": resource.kind.lower()}
    names = {"shortNames": list(resource.short_names)} if resource.short_names else {}
    groups = {"categories": list(resource.categories)} if resource.categories else {}
    main = {"name": resource.plural, **common, "verbs": verbs, **names, **groups}
    inner = [
        {
            "name": f"{resource.plural}/{sub}",
            **common,
            "singularName": "",
            "verbs": ["create", "get", "patch", "update"],
        }
        for sub in resource.subresources
    ]
    return [main, *inner]


def access_review(review: Mapping[str, Any], denied: set[tuple[str, str]]) -> dict[str, Any]:
    """A SelfSubjectAccessReview with its answer."""
    wanted = (review.get("spec") or {}).get("resourceAttributes") or {}
    plural, subresource = wanted.get("resource", ""), wanted.get("subresource", "")
    name = f"{plural}/{subresource}" if subresource else plural
    allowed = (wanted.get("verb", ""), name) not in denied
    head = {"kind": "SelfSubjectAccessReview", "apiVersion": f"{REVIEW_GROUP}/v1", "metadata": {}}
    return {**head, "spec": review.get("spec", {}), "status": {"allowed": allowed}}
