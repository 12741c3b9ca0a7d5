# SPDX-License-Identifier: Apache-2.0
"""The in-process Grid: Flower's contract, and that no client can touch what is another's."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from shoal_simulations.grid import Host, LocalGrid, Serial, isolate, node_ids

CLUSTERS = [{"cluster": name} for name in ("b", "a", "c")]


def _grid(client):
    nodes = node_ids(CLUSTERS)
    return LocalGrid(Serial(Host(client, nodes, {"key": 1})), nodes)


def _content():
    arrays = ArrayRecord([np.arange(3, dtype=np.float32)])
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"list": [1, 2], "x": 1})})


def test_node_ids_follow_the_names():
    assert [config["cluster"] for config in node_ids(CLUSTERS).values()] == ["a", "b", "c"]


def test_a_client_app_of_flower_runs_and_answers_its_message():
    app = ClientApp()

    @app.train()
    def train(message, context):
        head = {"cluster": context.node_config["cluster"], "key": context.run_config["key"]}
        return Message(RecordDict({"about": ConfigRecord(head)}), reply_to=message)

    with _grid(app) as grid:
        messages = [Message(_content(), node, "train", group_id="1") for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
    assert [reply.content["about"]["cluster"] for reply in replies] == ["a", "b", "c"]
    assert {reply.content["about"]["key"] for reply in replies} == {1}
    ids = [message.metadata.message_id for message in messages]
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids


def test_what_a_client_does_to_its_message_stays_with_it():
    def spoil(message, context):
        seen.append((message.content["config"]["x"], message.content["arrays"]["0"].numpy().tolist()))
        message.content["config"]["x"] = 99
        message.content["config"]["list"].append(3)
        message.content["arrays"]["0"].data = b"gone"
        del message.content["arrays"]["0"]
        return Message(RecordDict(), reply_to=message)

    seen = []
    shared = _content()
    with _grid(spoil) as grid:
        list(grid.send_and_receive([Message(shared, node, "train") for node in grid.get_node_ids()]))
    assert seen == [(1, [0.0, 1.0, 2.0])] * 3
    assert shared["config"]["list"] == [1, 2]
    assert shared["arrays"]["0"].numpy().tolist() == [0, 1, 2]


def test_isolation_copies_no_bytes():
    content = _content()
    assert isolate(content)["arrays"]["0"].data is content["arrays"]["0"].data


def test_what_a_client_raises_becomes_an_error_reply_with_its_name(capsys):
    def fail(message, context):
        raise RuntimeError("no")

    with _grid(fail) as grid:
        (reply,) = grid.send_and_receive([Message(_content(), 1001, "train")])
    assert reply.error.reason == "b: RuntimeError; the cause is in this cluster's own log"
    assert "Traceback" in capsys.readouterr().err


def test_replies_stream_one_by_one():
    def echo(message, context):
        ran.append(message.metadata.dst_node_id)
        return Message(RecordDict(), reply_to=message)

    ran = []
    with _grid(echo) as grid:
        ids = list(grid.push_messages([Message(_content(), node, "train") for node in grid.get_node_ids()]))
        assert ran == []
        assert len(list(grid.pull_messages(ids))) == 1
        assert ran == [1000]


def test_an_expired_message_never_runs_and_is_forgotten():
    def echo(message, context):
        ran.append(message.metadata.group_id)
        return Message(RecordDict(), reply_to=message)

    ran = []
    with _grid(echo) as grid:
        old = list(grid.push_messages([Message(_content(), 1000, "train", ttl=0.01, group_id="old")]))
        time.sleep(0.02)
        new = list(grid.push_messages([Message(_content(), 1000, "train", group_id="new")]))
        assert len(list(grid.pull_messages([*old, *new]))) == 1
        assert ran == ["new"]
        assert grid._waiting == {} == grid._done
