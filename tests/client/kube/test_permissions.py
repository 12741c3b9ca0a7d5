# SPDX-License-Identifier: Apache-2.0
"""deploy/rbac grants exactly what the client is known to use, and the client uses exactly that."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_client.actuate.leader import Leader, LeaseSettings
from shoal_client.kube.api import LEASES, connect
from shoal_client.kube.permissions import ACTIONS, CLIENT, LEASE, OWN_NAMESPACE, Permission
from shoal_client.policies.operator import Operator
from shoal_client.policies.registry import Policies
from shoal_client.policies.status import Serving
from shoal_client.state.informer import Informer
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import node
from shoal_simulations.control_plane.api import ApiServer

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/rbac"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)
ACCOUNTS = {"client": ["shoal-client"], "action-binding": ["shoal-client", "shoal-actuator"]}
"""Who a manifest is for; all others are for the process that acts alone."""

Grant = tuple[str, str, str, str, str]  # verb, group, plural[/subresource], namespace, name


def documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def grants(path: Path) -> Iterator[Grant]:
    for document in documents(path):
        namespace = document["metadata"].get("namespace", "") if document["kind"] == "Role" else ""
        for rule in document.get("rules", []):
            for verb in rule["verbs"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for name in rule.get("resourceNames", [""]):
                            yield verb, group, resource, namespace, name


def used(permissions: tuple[Permission, ...]) -> list[Grant]:
    return sorted(
        (
            p.verb,
            p.resource.api_version.rpartition("/")[0],
            p.resource.plural + (f"/{p.subresource}" if p.subresource else ""),
            p.namespace,
            p.name,
        )
        for p in permissions
    )


def test_the_manifests_grant_what_is_listed_and_nothing_else() -> None:
    assert sorted(grants(FOLDER / "client.yaml")) == used(CLIENT)
    assert list(grants(FOLDER / "actuator.yaml")) == []  # it only binds what others grant
    stems = {"client", "actuator", *(f"action-{name}" for name in ACTIONS)}
    assert {path.stem for path in MANIFESTS} == stems
    for name, permissions in ACTIONS.items():
        assert sorted(grants(FOLDER / f"action-{name}.yaml")) == used(permissions)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_no_wildcard_no_secret_and_only_our_service_accounts(path: Path) -> None:
    assert '"*"' not in path.read_text()
    for verb, _, resource, _, _ in grants(path):
        assert verb not in ("*", "escalate", "impersonate", "deletecollection")
        assert resource.partition("/")[0] not in ("*", "secrets")
    for document in documents(path):
        assert document["kind"] in (
            "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
        )  # fmt: skip
        if document["kind"].endswith("Binding"):
            assert document["roleRef"]["name"].startswith("shoal-")
            names = [s["name"] for s in document["subjects"]]
            assert document["subjects"] == [
                {"kind": "ServiceAccount", "name": name, "namespace": OWN_NAMESPACE} for name in names
            ]
            assert names == ACCOUNTS.get(path.stem, ["shoal-actuator"])


def request_grant(method: str, path: str, watch: bool) -> Grant | None:
    """What a request needs; None for discovery, which everybody may read."""
    found = PATH.fullmatch(path)
    if found is None:
        return None
    group, namespace, plural, name, subresource = (found[g] or "" for g in PATH.groupindex)
    verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(method)
    verb = verb or ("watch" if watch else "get" if name else "list")
    return verb, group, plural + (f"/{subresource}" if subresource else ""), namespace, name


def policy(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "shoal.dev/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}


def test_what_the_client_asks_for_is_what_is_listed(tmp_path: Path) -> None:
    with ApiServer() as server:
        for file in sorted((ROOT / "deploy/crds").glob("*.yaml")):
            server.create("customresourcedefinitions", yaml.safe_load(file.read_text()))
        server.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shoal"}})
        server.create("schedulingpolicies", policy("SchedulingPolicy", {}))
        server.create("federationmemberships", policy("FederationMembership", {"clusterName": "c"}))
        api = connect(server.kubeconfig(tmp_path / "kubeconfig"))
        leader = Leader(api, LeaseSettings(LEASE, OWN_NAMESPACE, "me"))
        for _ in range(2):
            assert leader.try_acquire_or_renew()
        policies = Policies()
        operator = Operator(api, policies, leader, lambda: Serving("v1", "ab" * 32))
        informer = Informer(api, LiveCluster())
        operator.start()
        informer.start()
        end = time.monotonic() + 20
        try:
            while not {grant for grant in used(CLIENT) if grant[0] == "watch"} <= set(asked(server)):
                time.sleep(0.01)
            time.sleep(0.2)  # the streams of first lists turn into watches
            server.create("nodes", node("n"))
            server.compact()  # so that no watch can go on: lists after a 410 are not streams
            server.end_watches()
            while missing := set(used(CLIENT)) - set(asked(server)) - RARE:
                assert time.monotonic() < end, f"listed but never used: {sorted(missing)}"
                time.sleep(0.05)
        finally:
            informer.stop()
            operator.stop()
        for resource in ("schedulingpolicies", "federationmemberships"):
            server.delete(resource, "a")
        operator.resync()
        assert set(asked(server)) - set(used(CLIENT)) == set()
        assert set(used(CLIENT)) - set(asked(server)) == set()
        assert api.get(LEASES, LEASE, OWN_NAMESPACE)["spec"]["holderIdentity"] == "me"


RARE = {("get", "shoal.dev", plural, "", "") for plural in ("schedulingpolicies", "federationmemberships")}
"""Asked only whether an object that a list lacks is really gone."""


def asked(server: ApiServer) -> list[Grant]:
    """The permissions that the requests so far needed, names left out where they are granted for all."""
    found = []
    for request in server.requests:
        grant = request_grant(request.method, request.path, request.query.get("watch") in ("1", "true"))
        if grant is not None and "/" in request.path.strip("/") and grant[2]:
            verb, group, resource, namespace, name = grant
            own = namespace == OWN_NAMESPACE and resource == "leases"
            found.append((verb, group, resource, namespace if own else "", name if own else ""))
    return found
