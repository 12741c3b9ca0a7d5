# SPDX-License-Identifier: Apache-2.0
"""The stanzas that are shipped for kube-scheduler can only be ignored, never in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[3] / "deploy" / "kube-scheduler"
FILES = sorted(FOLDER.glob("*.yaml"))


def extender(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    assert document["kind"] == "KubeSchedulerConfiguration"
    assert document["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    (found,) = document["extenders"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_stanza_is_node_cache_capable_ignorable_and_quick(path: Path) -> None:
    found = extender(path)
    assert found["nodeCacheCapable"] is True
    assert found["ignorable"] is True
    assert found["httpTimeout"] == "200ms"
    assert found["weight"] > 0
    assert "bindVerb" not in found
    assert "preemptVerb" not in found
    assert "managedResources" not in found


def test_only_the_one_for_masks_filters_and_it_speaks_tls() -> None:
    by_name = {path.stem: extender(path) for path in FILES}
    assert [name for name, found in by_name.items() if "filterVerb" in found] == ["masks-tls"]
    assert by_name["masks-tls"]["enableHTTPS"]
    assert by_name["masks-tls"]["tlsConfig"].keys() == {"caFile", "certFile", "keyFile"}
