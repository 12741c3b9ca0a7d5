# SPDX-License-Identifier: Apache-2.0
"""Affinity only gets stricter."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.actuate.narrowing import PREFERRED, REQUIRED, narrowed
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.pods import HOSTNAME

AMONG = {"key": HOSTNAME, "operator": "In", "values": ["b", "a"]}


def test_from_nothing() -> None:
    best = {**AMONG, "values": ["b"]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [best]}}]
    assert narrowed(None, ["b", "a"], required=False) == {"nodeAffinity": {PREFERRED: preferred}}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [AMONG]}]}
    both = {PREFERRED: preferred, REQUIRED: terms}
    assert narrowed({}, ["b", "a"], required=True) == {"nodeAffinity": both}


def test_what_was_there_stays() -> None:
    gpu = {"key": "gpu", "operator": "Exists"}
    affinity = {
        "podAffinity": {"x": 1},
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [gpu]}, {}]}, PREFERRED: [1]},
    }
    result = narrowed(affinity, ["b", "a"], required=True)
    assert result["podAffinity"] == {"x": 1}
    assert result["nodeAffinity"][REQUIRED] == {"nodeSelectorTerms": [{"matchExpressions": [gpu, AMONG]}, {}]}
    assert result["nodeAffinity"][PREFERRED][0] == 1


EXPRESSIONS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["zone", HOSTNAME]),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(st.sampled_from("abcd"), min_size=1, max_size=2),
    }
)
TERMS = st.lists(
    st.fixed_dictionaries({"matchExpressions": st.lists(EXPRESSIONS, max_size=2)}), min_size=1, max_size=3
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.none() | TERMS, st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
def test_a_node_is_admitted_after_if_it_was_before_and_is_among_the_chosen(
    terms: list[dict[str, Any]] | None, hosts: list[str]
) -> None:
    affinity = {} if terms is None else {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}

    def admits(affinity: dict[str, Any], host: str) -> bool:
        spec = {"affinity": affinity, "containers": [{"name": "c"}]}
        document = {"metadata": {"name": "p"}, "spec": spec}
        return read_pod(Field("t", "", document)).admits_node(host, {HOSTNAME: host, "zone": host})

    for host in "abcd":
        assert admits(narrowed(affinity, hosts, True), host) == (admits(affinity, host) and host in hosts)
        assert admits(narrowed(affinity, hosts, False), host) == admits(affinity, host)
