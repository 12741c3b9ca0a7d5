# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to the API: what its path names, and the answers to all but watches.

Source: apiserver pkg/endpoints/request/requestinfo.go and pkg/endpoints/handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal_simulations.control_plane import discovery, subresources
from shoal_simulations.control_plane.apply import apply
from shoal_simulations.control_plane.failures import (
    ApiError,
    about,
    bad_request,
    invalid,
    no_group,
    no_method,
    no_resource,
    not_found,
)
from shoal_simulations.control_plane.lists import Selection, list_bytes, page
from shoal_simulations.control_plane.patches import json_patch, merge, strategic
from shoal_simulations.control_plane.registry import Registry
from shoal_simulations.control_plane.resources import Resource
from shoal_simulations.control_plane.store import Key, Stored

JSON_TYPE = "application/json"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
ACTS: dict[str, Callable[[Registry, Key, Mapping[str, Any]], dict[str, Any]]] = {
    "binding": subresources.bind,
    "eviction": subresources.evict,
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came in."""

    method: str
    path: str
    query: Mapping[str, str]
    user_agent: str
    content_type: str = ""
    body: bytes = b""

    @property
    def watching(self) -> bool:
        """Whether this asks for a stream of changes."""
        return self.method == "GET" and self.query.get("watch", "") in ("1", "true", "True")

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be stored."""
        return "dryRun" in self.query

    def content(self) -> Any:
        """The decoded body.

        Raises:
            ApiError: 400, it is neither JSON nor, for apply, YAML.
        """
        try:
            if self.content_type in (APPLY_PATCH, "application/yaml") and self.body[:1] != b"{":
                return msgspec.yaml.decode(self.body)  # YAML 1.1 reads JSON's 1e-06 as a string
            return msgspec.json.decode(self.body or b"{}")
        except msgspec.DecodeError as error:
            raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    resource: Resource
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Answer:
    """Status code and body."""

    code: int
    raw: bytes
    content_type: str = JSON_TYPE


def target_of(registry: Registry, path: str) -> Target:
    """The resource, object or subresource of a path.

    Raises:
        ApiError: 404, nothing is served there.
    """
    parts = path.strip("/").split("/")
    head = 2 if parts[0] == "api" else 3
    group = "" if parts[0] == "api" else (parts[1] if len(parts) > 1 else "")
    version, rest = (parts[head - 1] if len(parts) >= head else ""), parts[head:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and (group, version, rest[2]) in registry.resources:
        namespace, rest = rest[1], rest[2:]
    elif len(rest) == 3 and rest[0] == "namespaces" and rest[2] == "bindings":
        return Target(registry.resource("pods"), rest[1], "", "binding")
    resource = registry.resources.get((group, version, rest[0] if rest else ""))
    if not any((group, version) == known[:2] for known in registry.resources):
        raise no_group()
    name, subresource = (*rest[1:], "", "")[:2]
    if resource is None or len(rest) > 3 or (subresource and subresource not in resource.subresources):
        raise no_resource()
    return Target(resource, namespace, name, subresource)


def answer(registry: Registry, request: Request, denied: set[tuple[str, str]]) -> Answer:
    """Carry out a request other than a watch. `denied` holds (verb, resource) that RBAC refuses.

    Raises:
        ApiError: whatever is to be answered instead.
    """
    document = discovery.document(registry, request.path)
    if document is not None:
        return Answer(200, document)
    if request.path.endswith("/selfsubjectaccessreviews"):
        return _json(201, discovery.access_review(request.content(), denied))
    target = target_of(registry, request.path)
    check_access(request, target, denied)
    if target.subresource in ACTS:
        return _act(registry, request, target)
    if target.subresource == "scale":
        return _scale(registry, request, target)
    return _object(registry, request, target)


def _object(registry: Registry, request: Request, target: Target) -> Answer:
    match request.method:
        case "GET":
            return Answer(200, _read(registry, request, target))
        case "POST" if not target.name:
            content = request.content()
            stored = registry.create(target.resource, target.namespace, content, dry_run=request.dry_run)
            return Answer(201, stored.raw)
        case "PUT" if target.name:
            return Answer(200, _replace(registry, request, target).raw)
        case "PATCH" if target.name:
            return _patch(registry, request, target)
        case "DELETE":
            return _delete(registry, request, target)
    raise no_method()


def _read(registry: Registry, request: Request, target: Target) -> bytes:
    if target.name:
        return registry.store.get(target.resource, target.key).raw
    selection = Selection.of(target.resource, target.namespace, request.query)
    return page(registry.store, selection, request.query)


def check_access(request: Request, target: Target, denied: set[tuple[str, str]]) -> None:
    """Refuse what the test denies.

    Raises:
        ApiError: 403.
    """
    verb = subresources.verb_of(request.method, target.name, watch=request.watching)
    plural = target.resource.plural + (f"/{target.subresource}" if target.subresource else "")
    if (verb, plural) in denied:
        group = target.resource.group
        text = f'{plural} is forbidden: User "shoal" cannot {verb} resource "{plural}" in API group "{group}"'
        raise ApiError(403, "Forbidden", text, {"kind": plural, "group": group})


def _json(code: int, content: Any) -> Answer:
    return Answer(code, msgspec.json.encode(content))


def _act(registry: Registry, request: Request, target: Target) -> Answer:
    if request.method != "POST":
        raise no_method()
    content = request.content()
    name = target.name or (content.get("metadata") or {}).get("name", "")
    return _json(201, ACTS[target.subresource](registry, (target.namespace, name), content))


def _scale(registry: Registry, request: Request, target: Target) -> Answer:
    def change(content: Mapping[str, Any]) -> dict[str, Any]:
        patched = request.content()
        if request.method == "PATCH":
            patched = _patched(request, target.resource, subresources.scale_of(content))
        return subresources.rescaled(content, patched)

    if request.method == "GET":
        stored = registry.store.get(target.resource, target.key)
    else:
        stored = registry.modify(target.resource, target.key, change, dry_run=request.dry_run)
    return _json(200, subresources.scale_of(stored.content))


def _replace(registry: Registry, request: Request, target: Target) -> Stored:
    content = request.content()
    return registry.modify(
        target.resource, target.key, lambda _: dict(content), target.subresource, dry_run=request.dry_run
    )


def _patch(registry: Registry, request: Request, target: Target) -> Answer:
    if request.content_type == APPLY_PATCH:
        return _apply(registry, request, target)
    stored = registry.modify(
        target.resource,
        target.key,
        lambda content: _patched(request, target.resource, content),
        target.subresource,
        dry_run=request.dry_run,
    )
    return Answer(200, stored.raw)


def _patched(request: Request, resource: Resource, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content after the request's patch.

    Raises:
        ApiError: 415, a kind of patch that is not known, or not for custom resources.
    """
    patch, kinds = request.content(), {JSON_PATCH: json_patch, MERGE_PATCH: merge, STRATEGIC_PATCH: strategic}
    if request.content_type not in kinds or (resource.custom and request.content_type == STRATEGIC_PATCH):
        known = ", ".join(
            kind for kind in (*kinds, APPLY_PATCH) if not (resource.custom and kind == STRATEGIC_PATCH)
        )
        text = f"the body of the request was in an unknown format - accepted media types include: {known}"
        raise ApiError(415, "UnsupportedMediaType", text)
    if request.content_type != JSON_PATCH and not isinstance(patch, Mapping):
        raise bad_request("error decoding patch: it is no object")
    return dict(kinds[request.content_type](content, patch))


def _apply(registry: Registry, request: Request, target: Target) -> Answer:
    wanted, manager = request.content(), request.query.get("fieldManager", "")
    if not manager:
        why = "Required value: is required for apply patch"
        raise invalid("PatchOptions.meta.k8s.io", "", ("fieldManager", why))
    if not isinstance(wanted, Mapping) or not all(key in wanted for key in ("apiVersion", "kind")):
        raise bad_request("invalid object type: apiVersion and kind must be set")
    force = request.query.get("force", "") == "true"

    def change(content: Mapping[str, Any]) -> dict[str, Any]:
        return apply(content, wanted, manager, target.subresource, force=force, now=registry.clock())

    with registry.store.lock:
        try:
            registry.store.get(target.resource, target.key)
        except ApiError:
            if target.subresource:
                raise
            metadata = {**(wanted.get("metadata") or {}), "name": target.name}
            fresh = {"metadata": {k: v for k, v in metadata.items() if k == "name"}}
            new = apply(
                fresh, {**wanted, "metadata": metadata}, manager, "", force=True, now=registry.clock()
            )
            stored = registry.create(target.resource, target.namespace, new, dry_run=request.dry_run)
            return Answer(201, stored.raw)
        stored = registry.modify(
            target.resource, target.key, change, target.subresource, dry_run=request.dry_run
        )
    return Answer(200, stored.raw)


def _delete(registry: Registry, request: Request, target: Target) -> Answer:
    options = dict(request.content() or {})
    if "gracePeriodSeconds" in request.query:
        options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    if not target.name:
        selection = Selection.of(target.resource, target.namespace, request.query)
        items = registry.store.items(target.resource)
        gone = [registry.delete(target.resource, key, options) for key, s in items if selection.holds(key, s)]
        metadata = {"resourceVersion": str(registry.store.revision)}
        return Answer(200, list_bytes(target.resource, metadata, gone))
    if target.subresource:
        raise not_found(target.resource.qualified, target.name)
    if request.dry_run:
        return Answer(200, registry.store.get(target.resource, target.key).raw)
    stored = registry.delete(target.resource, target.key, options)
    held = stored.content["metadata"].get("finalizers")
    if not held and target.resource.qualified != "pods":
        details = about(target.resource.qualified, target.name) | {"uid": stored.content["metadata"]["uid"]}
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
        return _json(200, status)
    return Answer(200, stored.raw)
