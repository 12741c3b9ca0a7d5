# SPDX-License-Identifier: Apache-2.0
"""What a request does to objects: create, replace, patch, delete, each with the rules of its kind.

Source: apiserver pkg/registry/generic/registry/store.go and the strategies under pkg/registry. Not emulated:
garbage collection by owner, controllers, conversion between versions.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, final

import msgspec

from shoal_simulations.control_plane import admission, custom, pod_rules
from shoal_simulations.control_plane.failures import (
    ApiError,
    bad_request,
    conflict,
    invalid,
    not_found,
)
from shoal_simulations.control_plane.resources import BUILT_IN, Resource
from shoal_simulations.control_plane.store import Key, Store, Stored
from shoal_simulations.control_plane.webhooks import CONFIGURATIONS, mutated

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
CONDITIONAL = ("leases.coordination.k8s.io",)
"""Built-in kinds that, as custom ones, are only replaced by whoever names the version that he read."""

TOPOLOGY = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
SERVER_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
Content = Mapping[str, Any]


def stamp(seconds: float) -> str:
    """Seconds since the epoch as the API writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@final
class Registry:
    """All kinds and their objects. `clock` gives seconds since the epoch for the times that objects carry."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.store = Store()
        self.clock = clock
        self.resources: dict[tuple[str, str, str], Resource] = {
            (r.group, r.version, r.plural): r for r in BUILT_IN
        }
        self.schemas: dict[str, custom.Schema] = {}
        for name in NAMESPACES:
            self.create(self.resource("namespaces"), "", {"metadata": {"name": name}})

    def now(self) -> str:
        """The time as the API writes it."""
        return stamp(self.clock())

    def resource(self, name: str) -> Resource:
        """A kind by its plural, with its group where two share the plural: `pods`, `events.events.k8s.io`.

        Raises:
            ApiError: 404.
        """
        for resource in self.resources.values():
            if name in (resource.plural, resource.qualified, resource.kind):
                return resource
        raise not_found("resource", name)

    def create(
        self, resource: Resource, namespace: str, content: Content, *, dry_run: bool = False
    ) -> Stored:
        """Add an object.

        Raises:
            ApiError: 400, 403, 404 (no such namespace), 409 or 422.
        """
        new = self._named(resource, namespace, content)
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.now()}
        if resource.generation:
            new["metadata"]["generation"] = 1
        if resource.status and resource.qualified != "nodes":
            new.pop("status", None)
        if self.store.items(self.resource(CONFIGURATIONS)):
            new = self._mutated(resource, new)
        with self.store.lock:
            new = in_order(resource, self._prepared(resource, new))
            key = (namespace, new["metadata"]["name"])
            if dry_run:
                return Stored(new, msgspec.json.encode(new))
            stored = self.store.create(resource, key, new)
            if resource.kind == "CustomResourceDefinition":
                stored = self._define(resource, key, new)
            return stored

    def modify(
        self,
        resource: Resource,
        key: Key,
        change: Callable[[Content], dict[str, Any]],
        subresource: str = "",
        *,
        dry_run: bool = False,
    ) -> Stored:
        """Replace an object by what `change` makes of it. What a subresource does not own stays as it was.

        Raises:
            ApiError: 404, 409 (another version or identity than the stored one), 422 or what `change` raises.
        """
        with self.store.lock:
            old = self.store.get(resource, key)
            new = self._updated(resource, old.content, change(old.content), subresource)
            if _same(old.content, new):
                return old
            if dry_run:
                return Stored(new, msgspec.json.encode(new))
            if _is_over(new["metadata"]):
                self.store.replace(resource, key, new)
                return self._remove(resource, key)
            stored = self.store.replace(resource, key, new)
            if resource.kind == "CustomResourceDefinition" and subresource == "":
                stored = self._define(resource, key, new)
            return stored

    def delete(self, resource: Resource, key: Key, options: Content | None = None) -> Stored:
        """Delete an object, or mark it where a grace period or a finalizer holds it.

        Raises:
            ApiError: 404, or 409 where the preconditions do not hold.
        """
        options = options or {}
        with self.store.lock:
            old = self.store.get(resource, key)
            check_preconditions(resource, old.content["metadata"], options.get("preconditions") or {})
            grace = _grace(resource, old.content, options)
            metadata = dict(old.content["metadata"])
            if not grace and not metadata.get("finalizers"):
                removed = self._remove(resource, key)
                return _as_deleted(removed, self.now()) if resource.qualified == "pods" else removed
            if "deletionTimestamp" in metadata:
                grace = min(grace, metadata["deletionGracePeriodSeconds"])
                if grace == metadata["deletionGracePeriodSeconds"]:
                    return old
            elif "generation" in metadata:
                metadata["generation"] += 1
            metadata["deletionTimestamp"] = stamp(self.clock() + grace)
            metadata["deletionGracePeriodSeconds"] = grace
            return self.store.replace(resource, key, {**old.content, "metadata": metadata})

    def _named(self, resource: Resource, namespace: str, content: Content) -> dict[str, Any]:
        """The new object with its identity checked and filled in."""
        if not isinstance(content, Mapping):
            raise bad_request("the body is no object")
        for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            if content.get(field, wanted) != wanted:
                raise bad_request(
                    f"the {field} in the data ({content[field]}) does not match the expected ({wanted})"
                )
        metadata = dict(content.get("metadata") or {})
        if metadata.get("namespace", namespace) not in ("", namespace):
            raise bad_request(
                "the namespace of the provided object does not match the namespace on the request"
            )
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if resource.namespaced:
            metadata["namespace"] = namespace
            self.store.get(self.resource("namespaces"), ("", namespace))
        if not metadata.get("name") and metadata.get("generateName"):
            random = uuid.uuid4().bytes[:5]
            metadata["name"] = metadata["generateName"] + "".join(SUFFIX[b % len(SUFFIX)] for b in random)
        if not metadata.get("name"):
            why = "Required value: name or generateName is required"
            raise invalid(resource.kind, "", ("metadata.name", why))
        for server_set in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(server_set, None)
        body = {
            k: copy.deepcopy(v) for k, v in content.items() if k not in ("apiVersion", "kind", "metadata")
        }
        return in_order(resource, {"metadata": copy.deepcopy(metadata), **body})

    def _prepared(self, resource: Resource, new: dict[str, Any]) -> dict[str, Any]:
        if resource.qualified == "pods":
            new = admission.limit_range(self.store, self.resource("limitranges"), new)
            new = pod_rules.complete(new, self._priorities(), self.now())
            new["metadata"] = self.with_topology(new["metadata"], new["spec"].get("nodeName", ""))
            admission.check_quota(
                self.store, self.resource("resourcequotas"), self.resource("pods"), new, None
            )
        if resource.kind == "Namespace":
            new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]
            new |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        if resource.qualified in self.schemas:
            new = self.schemas[resource.qualified].admit(new)
        return new

    def _mutated(self, resource: Resource, new: dict[str, Any]) -> dict[str, Any]:
        """The object after webhooks, which see pods with their defaults."""
        if resource.qualified == "pods":
            new = pod_rules.complete(new, self._priorities(), self.now())
            new.pop("status")
        kinds = (self.resource(CONFIGURATIONS), self.resource("namespaces"))
        return mutated(self.store, *kinds, resource, new)

    def with_topology(self, metadata: Content, node: str) -> dict[str, Any]:
        """A pod's metadata with the zone and region of the node that it is bound to, where known."""
        found = self._node(node)
        labels = found["metadata"].get("labels") or {} if found else {}
        copied = {name: labels[name] for name in TOPOLOGY if name in labels}
        return {**metadata, **({"labels": {**(metadata.get("labels") or {}), **copied}} if copied else {})}

    def _node(self, name: str) -> Content | None:
        try:
            return self.store.get(self.resource("nodes"), ("", name)).content
        except ApiError:
            return None

    def _priorities(self) -> dict[str, int]:
        classes = self.store.items(self.resource("priorityclasses"))
        return {key[1]: int(stored.content.get("value", 0)) for key, stored in classes}

    def _define(self, resource: Resource, key: Key, definition: Content) -> Stored:
        """Serve the kinds of a CustomResourceDefinition from now on."""
        for served, schema in custom.served(definition):
            self.resources[served.group, served.version, served.plural] = served
            self.schemas[served.qualified] = schema
        accepted = {"status": custom.established(definition, self.now())}
        return self.store.replace(resource, key, {**definition, **accepted})

    def _updated(
        self, resource: Resource, old: Content, new: dict[str, Any], subresource: str
    ) -> dict[str, Any]:
        metadata = dict(new.get("metadata") or {})
        check_version(resource, old["metadata"], metadata)
        kept = {name: old["metadata"][name] for name in SERVER_METADATA if name in old["metadata"]}
        kept |= {name: old["metadata"][name] for name in ("name", "namespace") if name in old["metadata"]}
        metadata = {k: v for k, v in metadata.items() if k not in SERVER_METADATA} | kept
        new = self._of_subresource(resource, old, {**new, "metadata": metadata}, subresource)
        new = in_order(resource, new)
        if resource.generation and _spec(old) != _spec(new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return new

    def _of_subresource(
        self, resource: Resource, old: Content, new: dict[str, Any], subresource: str
    ) -> dict[str, Any]:
        """The parts that the subresource owns taken from the new object, all others from the old one."""
        if subresource == "status":
            metadata = new["metadata"]
            if resource.custom:
                fields = metadata.get("managedFields")
                metadata = {**old["metadata"], **({"managedFields": fields} if fields else {})}
            new = {**old, "metadata": metadata, "status": new.get("status", {})}
        elif subresource == "resize":
            pods = self.resource("pods")
            new = {**pod_rules.resized(old, new, self._allocatable(old)), "metadata": dict(old["metadata"])}
            admission.check_quota(self.store, self.resource("resourcequotas"), pods, new, old)
        elif subresource == "ephemeralcontainers":
            spec = {**old["spec"], "ephemeralContainers": new["spec"].get("ephemeralContainers", [])}
            new = {**old, "metadata": dict(old["metadata"]), "spec": spec}
        elif subresource == "" and resource.status:
            new = {k: v for k, v in new.items() if k != "status"}
            new |= {"status": old["status"]} if "status" in old else {}
            if resource.qualified == "pods":
                pod_rules.validate_update(old, new)
        if resource.qualified in self.schemas:
            new = self.schemas[resource.qualified].admit(new)
        return new

    def _allocatable(self, pod: Content) -> Mapping[str, Any] | None:
        node = self._node(pod["spec"].get("nodeName", ""))
        return None if node is None else (node.get("status", {}).get("allocatable") or {})

    def _remove(self, resource: Resource, key: Key) -> Stored:
        if resource.kind == "Namespace":
            for inner in [r for r in self.resources.values() if r.namespaced]:
                for found, _ in self.store.items(inner):
                    if found[0] == key[1]:
                        self.store.remove(inner, found)
        removed = self.store.remove(resource, key)
        if resource.kind == "CustomResourceDefinition":
            for gone, _ in custom.served(removed.content):
                self.resources.pop((gone.group, gone.version, gone.plural), None)
                self.schemas.pop(gone.qualified, None)
        return removed


def check_version(resource: Resource, old: Content, new: Content) -> None:
    """Refuse an update of another version, identity or name than the stored one.

    Raises:
        ApiError: 400, 409 or 422.
    """
    name = old["name"]
    if new.get("name", name) != name or new.get("namespace", old.get("namespace")) != old.get("namespace"):
        raise bad_request(
            f"the name of the object ({new.get('name')}) does not match the name on the URL ({name})"
        )
    version = new.get("resourceVersion")
    if not version and (resource.custom or resource.qualified in CONDITIONAL):
        why = "Invalid value: 0: must be specified for an update"
        raise invalid(resource.qualified, name, ("metadata.resourceVersion", why))
    if version and version != old["resourceVersion"]:
        raise conflict(resource.qualified, name)
    if new.get("uid") and new["uid"] != old["uid"]:
        why = f"Precondition failed: UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
        raise conflict(resource.qualified, name, why)


def check_preconditions(resource: Resource, metadata: Content, wanted: Content) -> None:
    """Refuse to delete another object than the one that was meant.

    Raises:
        ApiError: 409.
    """
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != metadata[field]:
            why = (
                f"Precondition failed: {label} in precondition: {wanted[field]}, "
                f"{label} in object meta: {metadata[field]}"
            )
            raise conflict(resource.qualified, metadata["name"], why)


def _spec(content: Content) -> dict[str, Any]:
    return {k: v for k, v in content.items() if k not in ("apiVersion", "kind", "metadata", "status")}


def _same(old: Content, new: Content) -> bool:
    """Nothing changed; managedFields carry a time that does not count."""

    def counted(content: Content) -> dict[str, Any]:
        metadata = dict(content["metadata"])
        metadata.pop("resourceVersion", None)
        owners = [
            {k: v for k, v in entry.items() if k != "time"}
            for entry in metadata.pop("managedFields", None) or ()
        ]
        return {
            **content,
            "metadata": {k: v for k, v in metadata.items() if v not in ({}, [], None)},
            "owners": owners,
        }

    return counted(old) == counted(new)


def _is_over(metadata: Content) -> bool:
    """Marked for deletion, and neither a finalizer nor a grace period holds it."""
    held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
    return "deletionTimestamp" in metadata and not held


def in_order(resource: Resource, content: Content) -> dict[str, Any]:
    """The object with its kind first and without what the API leaves out when it is empty."""
    metadata = {k: v for k, v in content["metadata"].items() if v not in ({}, [], None, "")}
    rest = {k: v for k, v in content.items() if k not in ("apiVersion", "kind", "metadata")}
    if resource.qualified == "pods":
        spec = rest.get("spec", {})
        rest["spec"] = {k: v for k, v in spec.items() if v not in ({}, [], None) or k == "securityContext"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **rest}


def _as_deleted(removed: Stored, now: str) -> Stored:
    """A pod as its deletion answers: marked, without grace."""
    metadata = dict(removed.content["metadata"])
    if "deletionTimestamp" not in metadata:
        metadata["generation"] = metadata.get("generation", 0) + 1
    metadata = {"deletionTimestamp": now, **metadata, "deletionGracePeriodSeconds": 0}
    content = {**removed.content, "metadata": metadata}
    return Stored(content, msgspec.json.encode(content))


def _grace(resource: Resource, content: Content, options: Content) -> int:
    """Seconds that a deletion waits for the kubelet: none for pods that never ran or are done."""
    spec, phase = content.get("spec", {}), content.get("status", {}).get("phase")
    if resource.qualified != "pods" or not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked)
