# SPDX-License-Identifier: Apache-2.0
"""The one way to the Kubernetes API: raw JSON, a deadline on every call, errors by what to do about them.

The `kubernetes` package reads kubeconfig and in-cluster credentials (and refreshes them) and sets up TLS; its
models are not used: reading 50,000 pods into them takes minutes and gigabytes. Objects are plain dicts.

    api = connect(Path("~/.kube/config").expanduser())
    pod = api.get(PODS, "web-0", "default")
    api.patch(PODS, "web-0", {"metadata": {"labels": {"a": "b"}}}, "default")
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Literal, NamedTuple, final
from urllib.parse import urlencode

import msgspec
import urllib3

from shoal_client.kube.errors import Conflict, Gone, NotFound, Refused, TooManyRequests, api_error
from shoal_client.kube.resources import (
    ACCESS_REVIEWS,
    AUTOSCALERS,
    CONFIG_MAPS,
    CUSTOM_RESOURCES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    HTTP_ROUTES,
    JOBS,
    LEASES,
    LIMIT_RANGES,
    MEMBERSHIPS,
    NAMESPACES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SCHEDULING_POLICIES,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from shoal_client.kube.watch import Watch
from shoal_common.errors import InputError, Transient

__all__ = [
    "Api", "Watch", "Version", "connect", "Resource", "PODS", "NODES", "NAMESPACES", "SERVICES",
    "CONFIG_MAPS",
    "LIMIT_RANGES", "RESOURCE_QUOTAS", "EVENTS", "LEASES", "DEPLOYMENTS", "REPLICA_SETS",
    "STATEFUL_SETS", "JOBS", "AUTOSCALERS", "DISRUPTION_BUDGETS", "HTTP_ROUTES", "NODE_TOPOLOGIES",
    "RESOURCE_SLICES", "CUSTOM_RESOURCES", "ACCESS_REVIEWS", "SCHEDULING_POLICIES", "MEMBERSHIPS",
    "Refused", "NotFound", "Conflict", "Gone", "TooManyRequests",
]  # fmt: skip

CONNECT_SECONDS, READ_SECONDS = 3.0, 10.0
LIST_SECONDS = 60.0  # a page of a list may take its time on a busy server
CONNECTIONS = 16
PAGE = 500
FIELD_MANAGER = "shoal"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

_log = logging.getLogger("shoal.client.kube_api")

PatchKind = Literal["merge", "strategic", "json", "apply"]
PATCH_TYPES: Mapping[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Version(NamedTuple):
    """What a server says of itself; `date` is its clock in seconds since the epoch, None where not told."""

    major: int
    minor: int
    text: str
    date: float | None


class Credentials(NamedTuple):
    """How to reach a server, for a library that speaks HTTP itself (kopf); empty where not set."""

    server: str
    authorization: str  # the header's value
    ca_file: str
    certificate_file: str
    key_file: str
    verify: bool


def connect(kubeconfig: Path | None = None, *, in_cluster: bool | None = None, context: str = "") -> Api:
    """Connect by a kubeconfig, or as the pod that this process runs in; nothing is sent yet.

    Args:
        kubeconfig: the file; None takes the in-cluster credentials where there are any, else $KUBECONFIG or
            ~/.kube/config.
        in_cluster: True demands the in-cluster credentials, False never takes them.
        context: the context to use; "" the file's current one.

    Raises:
        InputError: no usable credentials.
    """
    import kubernetes

    loaders: Any = kubernetes.config
    configuration = kubernetes.client.Configuration()
    inside = SERVICE_ACCOUNT.exists() if in_cluster is None else in_cluster
    if kubeconfig is not None and not kubeconfig.exists():
        raise InputError(str(kubeconfig), "credentials", "there is no such file", "give --kubeconfig FILE")
    try:
        if inside and kubeconfig is None:
            loaders.load_incluster_config(client_configuration=configuration)
        else:
            loaders.load_kube_config(str(kubeconfig) if kubeconfig else None, context or None, configuration)
    except Exception as error:  # the loaders raise whatever YAML, files and plugins raise
        where = str(kubeconfig or "kubeconfig")
        sentence = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(where, "credentials", sentence, "give --kubeconfig FILE") from error
    if not configuration.host.startswith(("https://", "http://")):
        problem = f"{configuration.host!r} is no URL"
        raise InputError(str(kubeconfig or "kubeconfig"), "server", problem, "write https://HOST:PORT")
    if not configuration.verify_ssl:  # as the kubeconfig says; one warning is enough
        _log.warning("%s: the certificate of the API server is not verified", kubeconfig or "kubeconfig")
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False
    return Api(configuration, kubernetes.client.ApiClient(configuration).rest_client.pool_manager)


@final
class Api:
    """Calls to one API server; thread-safe. Every call has a connect and a read timeout.

    Every method raises:
        Transient: the server did not answer, or not now (5xx, TooManyRequests).
        NotFound, Conflict, Gone, Refused: it refused; all are Fatal.
    """

    def __init__(self, configuration: Any, pool: Any) -> None:
        """Take a `kubernetes.client.Configuration` and the urllib3 pool made from it; see `connect`."""
        self._configuration, self._pool = configuration, pool
        self._agent = f"shoal-client/{installed('shoal')}"

    @property
    def server(self) -> str:
        """The server's URL."""
        return str(self._configuration.host)

    def credentials(self) -> Credentials:
        """The credentials as they are now; tokens are refreshed as they expire, so ask again."""
        held = self._configuration
        files = (held.ssl_ca_cert or "", held.cert_file or "", held.key_file or "")
        return Credentials(self.server, self._headers("").get("authorization", ""), *files, held.verify_ssl)

    def list_raw(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        limit: int = PAGE,
        continue_token: str = "",
        labels: str = "",
        fields: str = "",
        read_seconds: float = LIST_SECONDS,
    ) -> bytes:
        """One page of a list of the latest version as JSON bytes; no more than `limit` objects, 0: all."""
        query = {
            "limit": str(limit),
            "continue": continue_token,
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        with self._call("GET", resource.path(namespace), query, read_seconds=read_seconds) as response:
            return bytes(response.data)

    def list(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Iterator[dict[str, Any]]:
        """All objects, page by page; Gone where the list outlives its continue token."""
        token = ""
        while True:
            page = msgspec.json.decode(
                self.list_raw(
                    resource, namespace=namespace, continue_token=token, labels=labels, fields=fields
                )
            )
            yield from page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    @contextmanager
    def watch_raw(
        self,
        resource: Resource,
        *,
        resource_version: str,
        timeout_seconds: int,
        read_seconds: float,
        namespace: str = "",
        initial: bool = False,
    ) -> Iterator[Watch]:
        """A watch with bookmarks; leaving the context ends it.

        With `initial` it begins with everything that there is, as ADDED, and a bookmark that says so; servers
        before 1.32 refuse that.

        The server ends the stream after `timeout_seconds`; a stream that sends nothing for `read_seconds`
        raises Transient.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "sendInitialEvents": "true" if initial else "",
            "resourceVersionMatch": "NotOlderThan" if initial else "",
        }
        with self._call(
            "GET", resource.path(namespace), query, read_seconds=read_seconds, stream=True
        ) as response:
            yield Watch(response, self.server)

    def get(
        self, resource: Resource, name: str, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """One object."""
        return self._json("GET", resource.path(namespace, name, subresource))

    def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
        """Create an object; Conflict where its name is taken."""
        return self._json("POST", resource.path(namespace), body)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        kind: PatchKind = "merge",
        subresource: str = "",
        field_manager: str = FIELD_MANAGER,
        force: bool = False,
    ) -> dict[str, Any]:
        """Patch an object; a `metadata.resourceVersion` in the body makes it a Conflict once it changed.

        `kind` "apply" is server-side apply under `field_manager`, `force` takes over what others own.
        """
        query = {"fieldManager": field_manager, "force": "true" if force else ""}
        path = resource.path(namespace, name, subresource)
        return self._json("PATCH", path, body, query, PATCH_TYPES[kind])

    def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> dict[str, Any]:
        """Delete an object; with `uid` only that very one, with `resource_version` as read, else Conflict."""
        asked = {"uid": uid, "resourceVersion": resource_version}
        only = {key: value for key, value in asked.items() if value}
        options = {"preconditions": only} if only else {}
        return self._json("DELETE", resource.path(namespace, name), options)

    def bind(self, name: str, namespace: str, node: str, uid: str = "") -> None:
        """Bind a pod to a node; Conflict where it is bound already, or is another pod than `uid`."""
        metadata = {"name": name, "namespace": namespace} | ({"uid": uid} if uid else {})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self._json("POST", PODS.path(namespace, name, "binding"), body)

    def resize(self, name: str, namespace: str, containers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Set resources of a pod's containers: [{"name": ..., "resources": {...}}, ...]."""
        body = {"spec": {"containers": list(containers)}}
        return self.patch(PODS, name, body, namespace, kind="strategic", subresource="resize")

    def evict(self, name: str, namespace: str, *, uid: str = "", grace_seconds: int | None = None) -> None:
        """Evict a pod by the Eviction API; TooManyRequests where a PodDisruptionBudget forbids it now."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        self._json("POST", PODS.path(namespace, name, "eviction"), body)

    def scale(self, resource: Resource, name: str, namespace: str, replicas: int) -> dict[str, Any]:
        """Set the replicas of a workload through its `scale` subresource."""
        return self.patch(resource, name, {"spec": {"replicas": replicas}}, namespace, subresource="scale")

    def access_review(
        self, verb: str, resource: Resource, *, subresource: str = "", namespace: str = "", name: str = ""
    ) -> bool:
        """Whether we may do this; `namespace` "" asks for all of them."""
        group = resource.api_version.rpartition("/")[0]
        keys = ("verb", "group", "resource", "subresource", "namespace", "name")
        asked = dict(zip(keys, (verb, group, resource.plural, subresource, namespace, name), strict=True))
        spec = {"resourceAttributes": {key: value for key, value in asked.items() if value}}
        body = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
        return bool((self.create(ACCESS_REVIEWS, body).get("status") or {}).get("allowed"))

    def version(self) -> Version:
        """What server it is, and its clock."""
        with self._call("GET", "/version") as response:
            said = _decode(response.data)
            date = response.headers.get("Date")
        numbers = ["".join(filter(str.isdigit, str(said.get(k, "")))) or "0" for k in ("major", "minor")]
        seconds = parsedate_to_datetime(date).timestamp() if date else None
        return Version(int(numbers[0]), int(numbers[1]), str(said.get("gitVersion", "")), seconds)

    def close(self) -> None:
        """Close all idle connections."""
        self._pool.clear()

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        with self._call(method, path, query, body, content_type) as response:
            return _decode(response.data)

    @contextmanager
    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = "application/json",
        read_seconds: float = READ_SECONDS,
        stream: bool = False,
    ) -> Iterator[Any]:
        """One request; the response, its body unread where it is a stream."""
        text = urlencode({key: value for key, value in (query or {}).items() if value})
        try:
            response = self._pool.request(
                method,
                self.server.rstrip("/") + path + (f"?{text}" if text else ""),
                body=None if body is None else msgspec.json.encode(body),
                headers=self._headers(content_type),
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
                retries=False,
                redirect=False,
                preload_content=not stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Transient(f"{self.server}: {method} {path}: {error}") from error
        try:
            if response.status >= 300:
                raise _error(response, f"{method} {path}")
            yield response
        finally:
            if stream:
                response.close()
            response.release_conn()

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": self._agent, "Content-Type": content_type}
        for setting in self._configuration.auth_settings().values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        return headers


def _decode(data: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(data) if data else {}
    except msgspec.DecodeError as error:
        raise Transient(f"the server answered what is no JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _error(response: Any, what: str) -> Exception:
    """The exception of an HTTP status; its sentence is the server's."""
    try:
        status = _decode(response.data)
    except (Transient, urllib3.exceptions.HTTPError, OSError):
        status = {}
    code, reason = response.status, str(status.get("reason") or response.reason or "")
    sentence = f"{what}: {status.get('message') or f'HTTP {code} {reason}'}"
    if code == 401:
        sentence += ": the server does not know these credentials; give others, or renew the token"
    return api_error(code, reason, sentence, response.headers.get("Retry-After") or "")
