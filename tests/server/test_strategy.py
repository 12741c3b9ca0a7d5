# SPDX-License-Identifier: Apache-2.0
"""Rounds against clusters that are broken, hostile, slow, silent, spent or new; over the in-process Grid."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from shoal_common import wire
from shoal_common.errors import InputError, Transient
from shoal_server.events import Admitted, Ending, Refusal, RoundEnded, RoundStarted, RunStarted
from shoal_server.settings import Settings
from shoal_server.strategy import Federation
from shoal_simulations.grid import Host, LocalGrid, Serial, node_ids

MODEL = {"b": np.array([1, 2], np.float32), "w": np.zeros((2, 2), np.float32)}
GOOD = {"b": np.array([2, 4], np.float32), "w": np.ones((2, 2), np.float32)}


@dataclass(frozen=True)
class Update:
    """The attributes of a SharedUpdate, unchecked."""

    cluster: str
    round: int
    schema_hash: str = "schema"
    arrays: dict[str, np.ndarray] = field(default_factory=lambda: dict(GOOD))
    ledger_head: str = ""
    epsilon: float | None = None
    delta: float | None = None
    unit: str = ""


class Cluster:
    """A ClientApp whose clusters do what `acts` says; all others send GOOD."""

    def __init__(self, **acts):
        self.acts, self.asked = acts, []

    def __call__(self, message, context):
        cluster = context.node_config["cluster"]
        if message.metadata.message_type == wire.HELLO:
            hello = wire.Hello(cluster, "schema")
            change = self.acts.get(f"hello_{cluster}", lambda h: h)
            return Message(wire.encode_hello(change(hello)), reply_to=message)
        instruction = wire.decode_instruction(message.content)
        self.asked.append((instruction.round, cluster))
        act = self.acts.get(cluster, wire.encode_update)
        content = act(Update(cluster, instruction.round))
        if isinstance(content, Error):
            return Message(content, reply_to=message)
        return Message(content, reply_to=message)


def _run(client, names="abc", sink=None, stop=None, grid=None, **settings):
    events = []

    def both(event):
        events.append(event)
        if sink:
            sink(event)

    nodes = node_ids([{"cluster": name} for name in names])
    grid = grid or LocalGrid(Serial(Host(client, nodes, {})), nodes)
    fast = Settings(**{"rounds": 1, "join_timeout_seconds": 0.1, "max_update_rms": 3.0, **settings})
    outcome = Federation(fast, {n: a.copy() for n, a in MODEL.items()}, "schema", both, stop).run(grid)
    return outcome, events


def _with(**changes):
    return lambda update: wire.encode_update(replace(update, **changes))


def _vector(change):
    """An update whose vector or layout was changed after encoding."""

    def act(update):
        content = wire.encode_update(update)
        change(content)
        return content

    return act


def _set(record, **values):
    return lambda content: [content[record].__setitem__(key, value) for key, value in values.items()]


def _int_dtype(content):
    content["update"]["vector"].dtype = "int32"


def _raise(_):
    raise RuntimeError("broken on purpose")


HOSTILE = {
    "nan": (_with(arrays={**GOOD, "b": np.array([1, np.nan], np.float32)}), "not_finite"),
    "infinity": (_with(arrays={**GOOD, "b": np.array([1, np.inf], np.float32)}), "not_finite"),
    "wrong shape": (_with(arrays={**GOOD, "b": np.zeros((2, 1), np.float32)}), "shape"),
    "longer": (_with(arrays={**GOOD, "b": np.zeros(3, np.float32)}), "shape"),
    "other keys": (_with(arrays={"c": GOOD["b"], "w": GOOD["w"]}), "keys"),
    "extra key": (_with(arrays={**GOOD, "extra": GOOD["b"]}), "keys"),
    "no arrays": (_with(arrays={}), "keys"),
    "integers": (_vector(_int_dtype), "dtype"),
    "huge": (_with(arrays={**GOOD, "b": np.array([1e6, 0], np.float32)}), "norm"),
    "overflowing": (_with(arrays={**GOOD, "b": np.array([3e38, 0], np.float32)}), "norm"),
    "old round": (_with(round=0), "stale"),
    "next round": (_with(round=2), "stale"),
    "other schema": (_with(schema_hash="other"), "schema"),
    "speaks for another": (_with(cluster="a"), "not_selected"),
    "speaks for a stranger": (_with(cluster="z"), "not_selected"),
    "raises": (_raise, "error"),
    "error reply": (lambda _: Error(2, "no"), "error"),
    "empty": (lambda _: RecordDict(), "malformed"),
    "nothing but names": (lambda _: RecordDict({"about": ConfigRecord({"cluster": "b"})}), "malformed"),
    "no vector": (_vector(lambda content: content.__setitem__("update", ArrayRecord())), "malformed"),
    "a layout that is none": (_vector(_set("about", layout="{")), "malformed"),
    "a bottomless layout": (_vector(_set("about", layout="[" * 100_000)), "malformed"),
    "epsilon that is none": (_vector(_set("about", epsilon=float("nan"), delta=1e-5)), "malformed"),
    "negative epsilon": (_vector(_set("about", epsilon=-1.0, delta=1e-5)), "malformed"),
    "epsilon without delta": (_vector(_set("about", epsilon=1.0)), "malformed"),
    "delta above 1": (_vector(_set("about", epsilon=1.0, delta=2.0)), "malformed"),
    "a weight of its own": (_vector(_set("about", weight=1e12)), None),
    "unchanged model": (_with(arrays=MODEL), None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_bad_cluster_neither_ends_the_round_nor_bends_the_mean(name):
    act, reason = HOSTILE[name]
    outcome, events = _run(Cluster(b=act))
    (record,) = outcome.history
    assert record.void is None
    if reason is None:
        assert record.admitted == ("a", "b", "c")
        return
    assert dict(record.refused) == {"b": reason}
    assert record.admitted == ("a", "c")
    assert np.array_equal(outcome.arrays["b"], GOOD["b"])  # the mean of the others
    assert [event.reason for event in events if isinstance(event, Refusal)] == [reason]


class Doubling(Grid):
    """A Grid that delivers every reply of cluster a twice."""

    def __init__(self, inner):
        self.inner = inner

    set_run = create_message = send_and_receive = None
    run = None

    def get_node_ids(self):
        return self.inner.get_node_ids()

    def push_messages(self, messages):
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids):
        replies = list(self.inner.pull_messages(message_ids))
        again = [
            r for r in replies if r.metadata.src_node_id == 1000 and r.metadata.message_type == wire.TRAIN
        ]
        return replies + again


def test_a_second_reply_is_refused_and_the_first_counts_once():
    nodes = node_ids([{"cluster": name} for name in "abc"])
    client = Cluster(a=_with(arrays={**GOOD, "b": np.array([5, 7], np.float32)}))
    outcome, events = _run(client, grid=Doubling(LocalGrid(Serial(Host(client, nodes, {})), nodes)))
    assert outcome.history[0].admitted == ("a", "b", "c")
    assert outcome.history[0].refused == {}
    assert [e.reason for e in events if isinstance(e, Refusal)] == ["duplicate"]
    assert outcome.arrays["b"].tolist() == [3, 5]  # (5 + 2 + 2) / 3, (7 + 4 + 4) / 3


def test_events_of_a_round():
    _, events = _run(Cluster(), "ab")
    kinds = [type(event) for event in events]
    assert kinds[:-1] == [RunStarted, RoundStarted, Admitted, Admitted, RoundEnded]
    with pytest.raises(ValueError, match="read-only"):
        events[4].arrays["b"][0] = 9


def test_public_weights_weigh_and_a_reply_cannot():
    client = Cluster(a=_with(arrays={**GOOD, "b": np.array([6, 4], np.float32)}))
    outcome, _ = _run(client, "ab", weights="a=3")
    assert outcome.arrays["b"].tolist() == [5, 4]  # (3 * 6 + 2) / 4


def test_below_the_quorum_the_round_is_void_and_the_run_goes_on():
    outcome, _ = _run(Cluster(b=_raise, c=_raise), rounds=2, quorum=2)
    assert [record.void for record in outcome.history] == ["quorum: 1 of 2"] * 2
    assert outcome.arrays["b"].tolist() == [1, 2]
    assert outcome.ending == Ending.COMPLETED


def test_zero_weight_in_all_is_a_void_round():
    outcome, _ = _run(Cluster(), "ab", weights="a=0,b=0")
    assert outcome.history[0].void == "zero weight"
    assert outcome.arrays["b"].tolist() == [1, 2]


def test_a_void_round_without_any_reply():
    outcome, _ = _run(Cluster(a=_raise), "a")
    assert outcome.history[0].void == "quorum: 0 of 1"


def test_the_model_comes_out_of_a_void_round_with_the_same_bits():
    before = Federation(Settings(), {n: a.copy() for n, a in MODEL.items()}, "schema")
    outcome, _ = _run(Cluster(a=_raise), "a")
    assert before._state.arrays["w"].tobytes() == outcome.arrays["w"].tobytes()


def test_spent_clusters_keep_receiving_and_do_not_count():
    client = Cluster(b=lambda u: wire.encode_spent(u.cluster, u.round, u.schema_hash))
    outcome, _ = _run(client, rounds=2)
    assert [record.spent for record in outcome.history] == [("b",), ("b",)]
    assert [record.admitted for record in outcome.history] == [("a", "c"), ("a", "c")]
    assert (2, "b") in client.asked


def test_a_run_ends_when_all_are_spent():
    client = Cluster(a=lambda u: wire.encode_spent(u.cluster, u.round, u.schema_hash))
    outcome, _ = _run(client, "a", rounds=5)
    assert outcome.ending == Ending.SPENT
    assert outcome.round == 1


def test_a_run_goes_on_while_anybody_can_ship_and_spent_ones_take_nobodys_place(tmp_path):
    def spent(update):
        return wire.encode_spent(update.cluster, update.round, update.schema_hash)

    client = Cluster(a=spent, b=spent, c=spent)
    settings = {"fraction": 0.25, "checkpoint_dir": str(tmp_path)}
    outcome, _ = _run(client, "abcd", rounds=12, **settings)
    assert outcome.ending == Ending.COMPLETED
    first = next(record.round for record in outcome.history if "d" in record.admitted)
    known = {c for r in outcome.history[:first] for c in r.spent}
    for record in outcome.history[first:]:
        assert known <= set(record.cohort)  # they receive
        known |= set(record.spent)
    assert outcome.history[-1].admitted == ("d",)
    resumed, _ = _run(Cluster(a=spent, b=spent, c=spent, d=spent), "abcd", rounds=20, **settings)
    assert (resumed.ending, resumed.round) == (Ending.SPENT, 13)


def test_what_the_other_side_says_reaches_a_log_as_one_short_line():
    client = Cluster(b=lambda _: Error(2, "x\n\x1b[31m" + "y" * 9_999))
    _, events = _run(client)
    (refusal,) = [event for event in events if isinstance(event, Refusal)]
    assert refusal.detail == "x??[31m" + "y" * 293 + "..."


def test_epsilon_is_reported_by_cluster():
    outcome, _ = _run(Cluster(a=_with(epsilon=1.5, delta=1e-5, unit="transition", ledger_head="h")), "ab")
    assert outcome.history[0].epsilon == {"a": 1.5}


def test_a_fraction_is_asked_and_the_draw_is_seeded():
    first, second, other = Cluster(), Cluster(), Cluster()
    _run(first, "abcdef", rounds=3, fraction=0.5)
    _run(second, "abcdef", rounds=3, fraction=0.5)
    _run(other, "abcdef", rounds=3, fraction=0.5, seed=1)
    assert first.asked == second.asked != other.asked
    assert len(first.asked) == 9


def test_slow_clusters_miss_the_deadline():
    wait = threading.Event()

    def slow(update):
        wait.wait(0.3)
        return wire.encode_update(update)

    client = Cluster(b=slow)
    outcome, _ = _run(client, round_timeout_seconds=0.15)
    assert client.asked == [(1, "a"), (1, "b")]  # one process: b overran, c never began
    assert outcome.history[0].admitted == ("a", "b")
    assert outcome.history[0].refused == {"c": "timeout"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda hello: replace(hello, protocol=2), "schema"),
        (lambda hello: replace(hello, schema_hash="older"), "schema"),
        (lambda hello: replace(hello, cluster="a"), "duplicate"),
        (lambda hello: replace(hello, cluster=""), "duplicate"),
        (lambda hello: replace(hello, cluster="b\n"), "malformed"),
        (lambda hello: replace(hello, cluster="../b"), "malformed"),
        (lambda hello: replace(hello, cluster="b" * 300), "malformed"),
    ],
)
def test_a_node_of_another_version_or_name_is_never_asked(change, reason):
    client = Cluster(hello_b=change)
    outcome, events = _run(client, rounds=2)
    assert [record.cohort for record in outcome.history] == [("a", "c"), ("a", "c")]
    assert [e.reason for e in events if isinstance(e, Refusal)] == [reason]


def test_a_client_that_raised_when_it_was_greeted_is_greeted_again():
    raised = []

    def once(hello):
        if not raised:
            raised.append(hello.cluster)
            raise RuntimeError("not yet")
        return hello

    outcome, events = _run(Cluster(hello_b=once), rounds=2)
    assert [record.cohort for record in outcome.history] == [("a", "c"), ("a", "b", "c")]
    assert [(e.round, e.reason) for e in events if isinstance(e, Refusal)] == [(0, "error")]


def test_too_few_clusters_is_an_error_not_a_hang():
    with pytest.raises(Transient, match="2 of 3 clusters"):
        _run(Cluster(), "ab", min_clusters=3)


def test_stop_ends_the_run_in_the_middle_of_a_round_and_the_next_run_goes_on(tmp_path):
    stop = threading.Event()

    def stop_at_second(event):
        if isinstance(event, Admitted) and (event.round, event.cluster) == (2, "b"):
            stop.set()

    folder = str(tmp_path)
    outcome, _ = _run(Cluster(), sink=stop_at_second, stop=stop, rounds=3, checkpoint_dir=folder)
    assert (outcome.ending, outcome.round) == (Ending.STOPPED, 1)
    client = Cluster()
    resumed, events = _run(client, rounds=3, checkpoint_dir=folder)
    assert events[0] == RunStarted(2, 3)
    assert [number for number, _ in client.asked] == [2] * 3 + [3] * 3
    assert [record.round for record in resumed.history] == [1, 2, 3]
    straight, _ = _run(Cluster(), rounds=3)
    assert resumed.sha256 == straight.sha256


def test_ctrl_c_is_a_stop():
    def interrupt(_):
        raise KeyboardInterrupt

    outcome, _ = _run(Cluster(b=interrupt))
    assert outcome.ending == Ending.STOPPED


def test_a_finished_run_is_not_run_again_and_can_be_extended(tmp_path):
    first, _ = _run(Cluster(), rounds=2, checkpoint_dir=str(tmp_path))
    client = Cluster()
    again, _ = _run(client, rounds=2, checkpoint_dir=str(tmp_path))
    assert client.asked == []
    assert again.sha256 == first.sha256
    longer, _ = _run(client, rounds=3, checkpoint_dir=str(tmp_path))
    assert {number for number, _ in client.asked} == {3}
    assert longer.round == 3


def test_a_folder_of_another_run_is_refused(tmp_path):
    _run(Cluster(), checkpoint_dir=str(tmp_path))
    with pytest.raises(InputError, match="another configuration"):
        _run(Cluster(), checkpoint_dir=str(tmp_path), seed=5)


def test_a_round_that_broke_off_asks_the_same_cohort_again(tmp_path):
    settings = {"rounds": 2, "fraction": 0.34, "checkpoint_dir": str(tmp_path)}
    stop = threading.Event()

    def at_second(event):
        if isinstance(event, RoundStarted) and event.round == 2:
            stop.set()

    _, events = _run(Cluster(), "abcdef", sink=at_second, stop=stop, **settings)
    asked = next(e.cohort for e in events if isinstance(e, RoundStarted) and e.round == 2)
    outcome, _ = _run(Cluster(), "abcdefghij", **settings)  # others joined: the draw would differ
    assert outcome.history[1].cohort == asked
