# SPDX-License-Identifier: Apache-2.0
"""The extender's wire format, on what a real kube-scheduler sent and on what it must never see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shoal_client.serve.payloads import (
    KEPT_BYTES,
    MetaVictims,
    _read_pod,
    read_binding,
    read_candidates,
    read_pod_json,
    read_victims,
    write_error,
    write_filtered,
    write_priorities,
    write_victims,
)
from shoal_common.errors import InputError

POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u-1", "resourceVersion": "7"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "128Mi"}}}]},
}
NODES = {"metadata": {}, "items": [{"metadata": {"name": n}, "spec": {"x": n}} for n in ("n0", "n1")]}
RECORDED = Path(os.environ.get("SHOAL_DATA", "/nowhere")).parent / "payloads"
PAYLOADS = sorted(RECORDED.glob("*.json"))


def encoded(**keys: Any) -> bytes:
    return json.dumps(keys).encode()


def with_cpu(cpu: str) -> dict[str, Any]:
    return {**POD, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}


@pytest.mark.skipif(not PAYLOADS, reason="no recorded payloads beside SHOAL_DATA")
@pytest.mark.parametrize("path", PAYLOADS, ids=lambda p: p.stem)
def test_what_a_real_scheduler_sent_is_read_and_answered_in_kind(path: Path) -> None:
    document = json.loads(path.read_text())
    request, body = document["request"], json.dumps(document["request"]).encode()
    if "__bind" in path.stem:
        wanted = read_binding(body)
        assert (wanted.pod_name, wanted.node) == (request["PodName"], request["Node"])
    elif "__preempt" in path.stem:
        victims = read_victims(body)
        sent = request["NodeNameToMetaVictims"] or request["NodeNameToVictims"]
        assert victims.keys() == sent.keys()
        assert all(victim.uids for victim in victims.values())
        assert json.loads(write_victims(victims)) == document["response"]
    else:
        asked = read_candidates(body)
        assert asked.pod.uid == request["Pod"]["metadata"]["uid"]
        names = request["NodeNames"] or [n["metadata"]["name"] for n in request["Nodes"]["items"]]
        assert list(asked.names) == names
        answer = json.loads(write_filtered(asked, range(len(names))))
        assert answer["NodeNames"] == request["NodeNames"]
        items = None if request["Nodes"] is None else request["Nodes"]["items"]
        assert (answer["Nodes"] and answer["Nodes"]["items"]) == items


def test_case_3_nodes_and_names_in_every_combination() -> None:
    names = read_candidates(encoded(Pod=POD, Nodes=None, NodeNames=["n0", "n1"]))
    whole = read_candidates(encoded(Pod=POD, Nodes=NODES, NodeNames=None))
    none = read_candidates(encoded(Pod=POD, Nodes=None, NodeNames=[]))
    empty = read_candidates(encoded(Pod=POD, Nodes={"items": []}, NodeNames=None))
    both = read_candidates(encoded(Pod=POD, Nodes=NODES, NodeNames=["n1"]))
    assert [list(a.names) for a in (names, whole, none, empty, both)] == [
        ["n0", "n1"], ["n0", "n1"], [], [], ["n1"],
    ]  # fmt: skip
    kept = json.loads(write_filtered(names, [1], {"n0": "full"}))
    assert (kept["NodeNames"], kept["Nodes"]) == (["n1"], None)
    kept = json.loads(write_filtered(whole, [1], {"n0": "full"}))
    assert (kept["NodeNames"], kept["Nodes"]) == (None, {"items": [NODES["items"][1]]})
    assert json.loads(write_filtered(none, []))["NodeNames"] == []
    assert json.loads(write_filtered(empty, []))["Nodes"] == {"items": []}
    assert write_priorities([], []) == b"[]"
    for missing in ({"Nodes": None, "NodeNames": None}, {}):
        with pytest.raises(InputError, match="NodeNames: is null and so is Nodes"):
            read_candidates(encoded(Pod=POD, **missing))


def test_keys_are_read_in_any_letter_case() -> None:
    asked = read_candidates(encoded(pod=POD, nodes=None, nodenames=["n0"]))
    assert list(asked.names) == ["n0"]
    assert read_candidates(encoded(POD=POD, nodeNames=["n0"])).pod.requests["cpu"] == 500
    wanted = read_binding(encoded(podName="p", podNamespace="d", podUID="u", node="n"))
    assert (wanted.pod_uid, wanted.node) == ("u", "n")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"null", b"\xff\xfe", b'{"Pod":null,"NodeNames":["a"]}',
        b'{"Pod":{},"NodeNames":[]}', b'{"Pod":7,"NodeNames":["a"]}',
        encoded(Pod=POD, NodeNames="n0"), encoded(Pod=POD, NodeNames=[1]),
        encoded(Pod=POD, Nodes={"items": [7]}), b"[" * 100_000,
        encoded(Pod=with_cpu("1K"), NodeNames=["a"]),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_candidates(body)
    assert "\n" not in str(caught.value)


def test_scores_are_integers_and_names_are_escaped() -> None:
    text = write_priorities(["n0", 'n"1'], [10, 0])
    assert text.startswith(b'[{"Host":"n0","Score":10},')
    assert json.loads(text) == [{"Host": "n0", "Score": 10}, {"Host": 'n"1', "Score": 0}]


def test_a_pod_is_read_again_when_it_changed() -> None:
    first = read_pod_json(json.dumps(POD).encode())
    assert read_pod_json(json.dumps(POD).encode()) is first
    assert read_pod_json(json.dumps(with_cpu("2")).encode()).requests["cpu"] == 2000


def test_errors_and_victims() -> None:
    assert json.loads(write_error()) == {"Error": ""}
    assert json.loads(write_error('not "now"')) == {"Error": 'not "now"'}
    assert json.loads(write_victims({})) == {"NodeNameToMetaVictims": {}}
    assert MetaVictims().uids == ()
    for field in ("PodName", "PodNamespace", "PodUID", "Node"):
        full = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n", field: ""}
        with pytest.raises(InputError, match="is empty"):
            read_binding(encoded(**full))


def test_a_pod_with_broken_text_deep_inside_is_refused_in_one_line() -> None:
    pod = json.dumps({**POD, "metadata": {**POD["metadata"], "labels": {"a": "?"}}}).encode()
    body = b'{"Pod":' + pod.replace(b"?", b"\xff") + b',"NodeNames":["n0"]}'
    with pytest.raises(InputError, match="Pod: cannot be read"):
        read_candidates(body)


def test_large_pods_are_not_kept() -> None:
    before = _read_pod.cache_info().currsize
    for i in range(3):
        metadata = {**POD["metadata"], "uid": f"large-{i}", "annotations": {"a": "x" * KEPT_BYTES}}
        body = encoded(Pod={**POD, "metadata": metadata}, NodeNames=["n0"])
        assert read_candidates(body).pod.uid == f"large-{i}"
    assert _read_pod.cache_info().currsize == before
