# SPDX-License-Identifier: Apache-2.0
"""Mutating admission webhooks for new objects: called over HTTPS as an API server calls them.

Source: apiserver pkg/admission/plugin/webhook/mutating/dispatcher.go. Webhooks with a `url` are called;
services cannot be resolved here and fail by their failurePolicy. Not emulated: matchConditions, reinvocation.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import urllib3

from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.patches import json_patch
from shoal_simulations.control_plane.query import selects
from shoal_simulations.control_plane.resources import Resource
from shoal_simulations.control_plane.store import Store

CONFIGURATIONS = "mutatingwebhookconfigurations"
DEFAULT_TIMEOUT_SECONDS = 10
Content = Mapping[str, Any]


def mutated(
    store: Store, configurations: Resource, namespaces: Resource, resource: Resource, new: dict[str, Any]
) -> dict[str, Any]:
    """A new object after every webhook that wants to see it.

    Raises:
        ApiError: a webhook denies it (its own code), or 500 where one fails that may not.
    """
    for webhook in _interested(store, configurations, namespaces, resource, new):
        try:
            new = _ask(webhook, resource, new)
        except _Failed as error:
            if webhook.get("failurePolicy", "Fail") == "Fail":
                text = f'Internal error occurred: failed calling webhook "{webhook["name"]}": {error}'
                raise ApiError(500, "InternalError", text) from error
    return new


class _Failed(Exception):
    """A webhook gave no usable answer."""


def _interested(
    store: Store, configurations: Resource, namespaces: Resource, resource: Resource, new: Content
) -> Iterator[Content]:
    found = {key[1]: stored.content for key, stored in store.items(namespaces)}
    namespace = found.get(new["metadata"].get("namespace", ""))
    for _, stored in store.items(configurations):
        for webhook in stored.content.get("webhooks") or ():
            inside = namespace is None or selects(webhook.get("namespaceSelector") or {}, namespace)
            wanted = any(_covers(rule, resource) for rule in webhook.get("rules") or ())
            if wanted and inside and selects(webhook.get("objectSelector") or {}, new):
                yield webhook


def _covers(rule: Content, resource: Resource) -> bool:
    wanted = {
        "operations": "CREATE",
        "apiGroups": resource.group,
        "apiVersions": resource.version,
        "resources": resource.plural,
    }
    return all({"*", value} & set(rule.get(key) or ()) for key, value in wanted.items())


def _ask(webhook: Content, resource: Resource, new: dict[str, Any]) -> dict[str, Any]:
    identity = str(uuid.uuid4())
    kind = {"group": resource.group, "version": resource.version}
    request = {
        "uid": identity,
        "kind": {**kind, "kind": resource.kind},
        "resource": {**kind, "resource": resource.plural},
        "name": new["metadata"].get("name", ""),
        "namespace": new["metadata"].get("namespace", ""),
        "operation": "CREATE",
        "userInfo": {"username": "virtual"},
        "object": new,
        "oldObject": None,
        "dryRun": False,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    response = _call(webhook, review).get("response") or {}
    if response.get("uid") != identity:
        raise _Failed(f"expected response.uid={identity!r}, got {response.get('uid')!r}")
    if not response.get("allowed"):
        status = response.get("status") or {}
        text = f'admission webhook "{webhook["name"]}" denied the request: {status.get("message", "")}'
        raise ApiError(status.get("code", 403), status.get("reason", "Forbidden"), text)
    if "patch" not in response:
        return new
    try:
        operations = msgspec.json.decode(base64.b64decode(response["patch"]))
    except (binascii.Error, msgspec.DecodeError) as error:
        raise _Failed(f"its patch cannot be read: {error}") from error
    return dict(json_patch(new, operations))


def _call(webhook: Content, review: Content) -> dict[str, Any]:
    config = webhook["clientConfig"]
    if "url" not in config:
        raise _Failed("services are not resolved here")
    authority = base64.b64decode(config["caBundle"]).decode() if config.get("caBundle") else None
    timeout = urllib3.Timeout(total=webhook.get("timeoutSeconds", DEFAULT_TIMEOUT_SECONDS))
    headers = {"Content-Type": "application/json"}
    try:
        with urllib3.PoolManager(ca_cert_data=authority, retries=False, timeout=timeout) as pool:
            answer = pool.request("POST", config["url"], body=msgspec.json.encode(review), headers=headers)
        if answer.status != 200:
            raise _Failed(f"it answered {answer.status}")
        return dict(msgspec.json.decode(answer.data))
    except (urllib3.exceptions.HTTPError, msgspec.DecodeError, TypeError, ValueError) as error:
        raise _Failed(str(error)) from error
