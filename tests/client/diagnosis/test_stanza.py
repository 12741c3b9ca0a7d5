# SPDX-License-Identifier: Apache-2.0
"""The lint of kube-scheduler's configuration: each rule fires on its fault, the shipped files are clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_client.diagnosis.findings import Level
from shoal_client.diagnosis.stanza import lint, seconds

SHIPPED = sorted((Path(__file__).parents[3] / "deploy/kube-scheduler").glob("*.yaml"))
GOOD = {
    "urlPrefix": "http://127.0.0.1:8888",
    "prioritizeVerb": "prioritize",
    "weight": 15,
    "httpTimeout": "200ms",
    "nodeCacheCapable": True,
    "ignorable": True,
}


def document(extender: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return {**head, "extenders": [] if extender is None else [extender], **changes}


def said(extender: dict[str, Any], **settings: Any) -> list[tuple[Level, str]]:
    return [(f.level, f.message) for f in lint(document(extender), **settings) if f.level is not Level.OK]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_stanzas_cannot_harm(path: Path) -> None:
    findings = list(lint(yaml.safe_load(path.read_text())))
    assert [f for f in findings if f.level is Level.ERROR] == []
    for extender in yaml.safe_load(path.read_text())["extenders"]:
        assert extender["nodeCacheCapable"] is True
        assert extender["ignorable"] is True
        assert "bindVerb" not in extender
        assert "preemptVerb" not in extender


@pytest.mark.parametrize("extenders", ["abc", [5], {"urlPrefix": "http://x"}, [GOOD, "x"]])
def test_extenders_of_another_shape_are_said_to_be_so(extenders: object) -> None:
    messages = [f.message for f in lint(document(extenders=extenders)) if f.level is Level.ERROR]
    assert messages == ["extenders is no list of mappings"]


def test_a_good_stanza_has_no_complaint() -> None:
    assert said(GOOD) == []


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"nodeCacheCapable": False}, Level.ERROR, "nodeCacheCapable is not true"),
        ({"nodeCacheCapable": None}, Level.ERROR, "nodeCacheCapable is not true"),
        ({"ignorable": False}, Level.WARNING, "only its scores are missing"),
        ({"ignorable": False, "filterVerb": "filter"}, Level.ERROR, "no pod is scheduled"),
        ({"httpTimeout": None}, Level.ERROR, "costs every pod 5 s"),
        ({"httpTimeout": "2s"}, Level.WARNING, "up to twice"),
        ({"httpTimeout": "100ms"}, Level.ERROR, "not above fallback.timeoutMs 100"),
        ({"httpTimeout": "soon"}, Level.ERROR, "is no duration"),
        ({"prioritizeVerb": None}, Level.ERROR, "never asked for"),
        ({"weight": 0}, Level.ERROR, "weight must be"),
        ({"weight": 1}, Level.WARNING, "at most 100 points"),
        ({"filterVerb": "filter"}, Level.WARNING, "five minutes"),
        ({"bindVerb": "bind"}, Level.WARNING, "critical path"),
        ({"preemptVerb": "preempt"}, Level.WARNING, "refuses preemption"),
        ({"enableHTTPS": True}, Level.ERROR, "verifies nothing"),
        ({"urlPrefix": "https://shoal:8443"}, Level.ERROR, "enableHTTPS is not true"),
        ({"urlPrefix": ""}, Level.ERROR, "urlPrefix is missing"),
        ({"urlPrefix": "127.0.0.1:8888"}, Level.ERROR, "urlPrefix is no URL"),
        ({"ignorable": "yes please"}, Level.ERROR, "neither true nor false"),
        ({"tlsConfig": 5}, Level.ERROR, "tlsConfig is no mapping"),
        ({"managedResources": "nvidia.com/gpu"}, Level.ERROR, "managedResources is no list"),
        ({"httptimeout": "1s"}, Level.ERROR, "httptimeout is not a field"),
        ({"managedResources": [{"name": "gpu"}]}, Level.ERROR, "no extended resource"),
    ],
)
def test_each_fault_is_named(change: dict[str, Any], level: Level, words: str) -> None:
    found = said({**GOOD, **change})
    assert [lv for lv, message in found if words in message] == [level], found


@pytest.mark.parametrize("content", [None, [], "text", {"kind": "Pod"}])
def test_another_document_is_refused(content: object) -> None:
    (finding,) = lint(content)
    assert finding.level is Level.ERROR


def test_no_extender_at_all_is_an_error() -> None:
    assert [f.level for f in lint(document())] == [Level.ERROR]


def test_two_binders_are_an_error() -> None:
    binder = {**GOOD, "bindVerb": "bind"}
    findings = lint(document(extenders=[binder, binder]))
    assert any("more than one extender" in f.message for f in findings)


def test_a_small_weight_is_enough_where_a_profile_has_no_score_plugins() -> None:
    alone = {"plugins": {"score": {"disabled": [{"name": "*"}]}}}
    findings = lint(document({**GOOD, "weight": 1}, profiles=[alone]))
    assert [f for f in findings if f.level is not Level.OK] == []


@pytest.mark.parametrize(("nodes", "shown"), [(200, 100), (1000, 420), (5000, 500)])
def test_the_sample_of_a_large_cluster_is_told(nodes: int, shown: int) -> None:
    messages = [f.message for f in lint(document(GOOD), nodes=nodes)]
    assert any(f"{shown} of {nodes} nodes" in m for m in messages)
    full = document(GOOD, profiles=[{"percentageOfNodesToScore": 100}])
    assert not any("nodes are shown" in f.message for f in lint(full, nodes=nodes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("200ms", 0.2), ("1m30s", 90.0), ("1.5s", 1.5), ("0", 0.0), ("5", None), ("", None), ("1h", 3600.0)],
)
def test_durations_of_go(text: str, expected: float | None) -> None:
    assert seconds(text) == (None if expected is None else pytest.approx(expected))
