# SPDX-License-Identifier: Apache-2.0
"""Series to nodes: every way in which exporters name a node."""

from __future__ import annotations

import pytest

from shoal_client.collect.join import AddressBook, host
from shoal_client.collect.queries import NODE_LABELS, STATE
from shoal_common.pods import NodeRecord

NODES = {
    "node-1": NodeRecord(
        "node-1",
        {"kubernetes.io/hostname": "node-1.example"},
        addresses=("10.0.0.1", "fd00::1", "ip-10-0-0-1.ec2.internal"),
    ),
    "node-2": NodeRecord("node-2", addresses=("10.0.0.2", "192.168.0.9")),
    "node-3": NodeRecord("node-3", addresses=("10.0.0.3", "192.168.0.9")),
}


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("10.0.0.1:9100", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[fd00::1]:9100", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("Node-1:9400", "node-1"),
        ("node-1", "node-1"),
        ("", ""),
        (":9100", ":9100"),
        ("node-1:metrics", "node-1:metrics"),
    ],
)
def test_an_address_without_its_port(address: str, wanted: str) -> None:
    assert host(address) == wanted


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"node": "node-1", "instance": "10.0.0.2:9100"}, "node-1"),  # relabelled names come first
        ({"kubernetes_node": "node-2"}, "node-2"),
        ({"Hostname": "node-1.example", "instance": "10.244.3.7:9400"}, "node-1"),
        (
            {"Hostname": "dcgm-exporter-x7k2p", "instance": "10.0.0.3:9400"},
            "node-3",
        ),  # a pod's name says nothing
        ({"instance": "IP-10-0-0-1.ec2.internal:9100"}, "node-1"),
        ({"instance": "[fd00::1]:9100"}, "node-1"),
        ({"instance": "192.168.0.9:9100"}, None),  # two nodes claim it
        ({"instance": "10.9.9.9:9100"}, None),
        ({}, None),
    ],
)
def test_labels_tell_the_node(labels: dict[str, str], wanted: str | None) -> None:
    assert AddressBook(NODES).node(labels, NODE_LABELS) == wanted


def test_an_instance_that_is_no_address_is_known_by_its_host_name() -> None:
    book = AddressBook(NODES, {"rack7/slot3": "node-2", "elsewhere:9100": "stranger"})
    assert book.node({"instance": "rack7/slot3"}, NODE_LABELS) == "node-2"
    assert book.node({"instance": "elsewhere:9100"}, NODE_LABELS) is None


def test_the_address_of_kube_state_metrics_is_not_what_it_tells_about() -> None:
    labels = {"instance": "10.0.0.1:8080", "node": "node-2"}
    assert AddressBook(NODES).node(labels, STATE.labels) == "node-2"
    assert AddressBook(NODES).node({"instance": "10.0.0.1:8080"}, STATE.labels) is None


def test_a_name_wins_over_another_nodes_address() -> None:
    nodes = {"a": NodeRecord("a", addresses=("b",)), "b": NodeRecord("b")}
    assert AddressBook(nodes).node({"instance": "b:9100"}, NODE_LABELS) == "b"
