# SPDX-License-Identifier: Apache-2.0
"""The shipped webhook configuration can never freeze a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from shoal_client.actuate.webhook import OPT_IN
from shoal_client.serve.guard import SYSTEM_NAMESPACES

FOLDER = Path(__file__).parents[3] / "deploy" / "webhook"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def test_case_61_fails_open_within_two_seconds_and_leaves_own_and_system_namespaces_out() -> None:
    service, configuration = documents("webhook.yaml")
    own = service["metadata"]["namespace"]
    (webhook,) = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["timeoutSeconds"] <= 2
    assert webhook["sideEffects"] == "None"
    (excluded,) = webhook["namespaceSelector"]["matchExpressions"]
    assert (excluded["key"], excluded["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    assert set(excluded["values"]) >= SYSTEM_NAMESPACES | {own}
    assert webhook["objectSelector"]["matchLabels"] == dict([OPT_IN])
    (rule,) = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert webhook["clientConfig"]["service"]["name"] == service["metadata"]["name"]
    assert webhook["clientConfig"]["service"]["namespace"] == own


def test_the_certificate_is_for_the_service() -> None:
    service, _ = documents("webhook.yaml")
    issuer, certificate = documents("certificate.yaml")
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert f"{name}.{namespace}.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    annotations = documents("webhook.yaml")[1]["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"{namespace}/{certificate['metadata']['name']}"
