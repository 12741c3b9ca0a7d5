# SPDX-License-Identifier: Apache-2.0
"""`ApiServer`: the emulated Kubernetes API in a thread of this process, its faults, and short ways to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import msgspec

from shoal_simulations.control_plane import subresources
from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.http import Application, Server
from shoal_simulations.control_plane.patches import json_patch, merge, strategic
from shoal_simulations.control_plane.registry import Registry
from shoal_simulations.control_plane.requests import Request
from shoal_simulations.control_plane.resources import Resource
from shoal_simulations.control_plane.store import Key

PATCHES: dict[str, Callable[[Any, Any], Any]] = {"merge": merge, "strategic": strategic, "json": json_patch}


@final
class ApiServer:
    """A Kubernetes API on a free loopback port, as a context manager.

    Resources are named by their plural, with the group where two share it (`events.events.k8s.io`). Objects
    that the methods return are read only. `clock` gives the times that objects carry, in seconds since the
    epoch; streams and time-outs follow real time.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, bookmark_seconds: float = 60.0) -> None:
        self.registry = Registry(clock)
        self._application = Application(self.registry, bookmark_seconds)
        self._server = Server(self._application)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.port}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig that leads here, in JSON, which is YAML."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "virtual", "cluster": {"server": self.url}}],
            "users": [{"name": "virtual", "user": {"token": "virtual"}}],
            "contexts": [{"name": "virtual", "context": {"cluster": "virtual", "user": "virtual"}}],
            "current-context": "virtual",
        }
        path.write_bytes(msgspec.json.encode(document))
        return path

    # Faults

    def down(self) -> None:
        """Close the port and every connection; the objects stay."""
        self._server.stop()

    def up(self) -> None:
        """Listen again on the same port."""
        self._server.start()

    def delay(self, seconds: float) -> None:
        """Answer every request so much later."""
        self._application.faults.delay_seconds = seconds

    def error(self, status: int, count: int = 1, path: str = "") -> None:
        """Answer the next `count` requests whose path contains `path` with this HTTP status."""
        self._application.faults.errors += [(status, path)] * count

    def deny(self, verb: str, resource: str) -> None:
        """Refuse what RBAC would: `deny("create", "pods/binding")`; access reviews say so, too."""
        self._application.faults.denied.add((verb, resource))

    def unserve(self, resource: str) -> None:
        """Serve a kind no longer, as where its CustomResourceDefinition is not installed."""
        found = self.registry.resource(resource)
        del self.registry.resources[found.group, found.version, found.plural]

    def silence_watches(self) -> None:
        """Open watches, and those to come, stay open and send nothing, not even their end."""
        self._application.faults.silent = True
        self._application.faults.silenced += 1
        self._application.wake()

    def restore_watches(self) -> None:
        """Watches to come speak again; silenced ones stay dead, as behind a broken load balancer."""
        self._application.faults.silent = False

    def end_watches(self) -> None:
        """End every open watch in good order, as a server does after timeoutSeconds."""
        self._application.faults.ended += 1
        self._application.wake()

    def compact(self, *, gone_status: bool = False) -> None:
        """Forget all history: old versions and continue tokens get 410.

        A watch gets it as an ERROR event, as from a real server; with `gone_status` as its HTTP status, as
        from some proxies and older servers.
        """
        self._application.faults.gone_status = gone_status
        self.registry.store.compact()

    @property
    def requests(self) -> Sequence[Request]:
        """The last 10,000 requests: method, path, query, user_agent, body."""
        return tuple(self._application.requests)

    # Short ways to the objects

    def create(self, resource: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, with its status where it brings one; a missing namespace is created.

        Raises:
            ApiError: as over HTTP.
        """
        found = self.registry.resource(resource)
        namespace = self._namespace(found, content.get("metadata", {}).get("namespace", "default"))
        stored = self.registry.create(found, namespace, content)
        status = content.get("status")
        if status and found.status and found.qualified != "nodes":
            name = stored.content["metadata"]["name"]
            return self.patch(resource, name, {"status": status}, namespace=namespace, subresource="status")
        return dict(stored.content)

    def get(self, resource: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object.

        Raises:
            ApiError: 404.
        """
        found = self.registry.resource(resource)
        return dict(self.registry.store.get(found, self._key(found, name, namespace)).content)

    def objects(self, resource: str) -> list[dict[str, Any]]:
        """All objects of a resource, by namespace and name."""
        found = self.registry.resource(resource)
        return [dict(stored.content) for _, stored in self.registry.store.items(found)]

    def patch(
        self,
        resource: str,
        name: str,
        patch: Any,
        *,
        namespace: str = "default",
        kind: str = "merge",
        subresource: str = "",
    ) -> dict[str, Any]:
        """Patch an object, or its subresource `status` or `resize`; `kind` is merge, strategic or json.

        Raises:
            ApiError: as over HTTP.
        """
        found = self.registry.resource(resource)
        key = self._key(found, name, namespace)
        stored = self.registry.modify(found, key, lambda old: dict(PATCHES[kind](old, patch)), subresource)
        return dict(stored.content)

    def delete(
        self, resource: str, name: str, namespace: str = "default", *, grace: int | None = None
    ) -> None:
        """Delete an object; a bound pod stays, terminating, until its kubelet has ended it or `grace` is 0.

        Raises:
            ApiError: 404.
        """
        found = self.registry.resource(resource)
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        self.registry.delete(found, self._key(found, name, namespace), options)

    def bind(self, pod: str, node: str, namespace: str = "default") -> None:
        """Bind a pod, as a scheduler does.

        Raises:
            ApiError: 409 where it cannot be bound.
        """
        subresources.bind(self.registry, (namespace, pod), {"target": {"kind": "Node", "name": node}})

    def set_condition(
        self, resource: str, name: str, condition: Mapping[str, Any], namespace: str = "default"
    ) -> dict[str, Any]:
        """Set one condition of an object's status, with its transition time."""
        condition = {"lastTransitionTime": self.registry.now(), **condition}
        status = subresources.with_condition(self.get(resource, name, namespace).get("status", {}), condition)
        return self.patch(resource, name, {"status": status}, namespace=namespace, subresource="status")

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Wait until `holds` is true; it is asked again after every write and every 50 ms."""
        deadline = time.monotonic() + seconds
        with self.registry.store.changed:
            while not (met := holds()) and time.monotonic() < deadline:
                self.registry.store.changed.wait(0.05)
        return met

    def _key(self, resource: Resource, name: str, namespace: str) -> Key:
        return (namespace if resource.namespaced else "", name)

    def _namespace(self, resource: Resource, namespace: str) -> str:
        if not resource.namespaced:
            return ""
        try:
            self.get("namespaces", namespace)
        except ApiError:
            self.registry.create(self.registry.resource("namespaces"), "", {"metadata": {"name": namespace}})
        return namespace
