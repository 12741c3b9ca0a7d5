# SPDX-License-Identifier: Apache-2.0
"""Messages between client and server: round trips, zero-copy reading, whatever is no message."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from shoal_common import wire
from shoal_common.wire import Hello, Instruction, WireError

MODEL = {
    "b": np.array([1, 2], np.float32),
    "a": np.array([[3], [4]], np.float32),
    "scalar": np.array(5, np.float32),
    "none": np.zeros((0, 3), np.float32),
}


@dataclass(frozen=True)
class Update:
    """The attributes of a SharedUpdate."""

    cluster: str = "a"
    round: int = 3
    schema_hash: str = "s"
    arrays: dict[str, np.ndarray] = field(default_factory=lambda: dict(MODEL))
    ledger_head: str = "h"
    epsilon: float | None = 1.5
    delta: float | None = 1e-5
    unit: str = "transition"


def test_the_vector_holds_arrays_in_the_order_of_their_names():
    assert wire.pack(MODEL).tolist() == [3, 4, 1, 2, 5]  # a, b, none, scalar
    assert wire.layout_of(MODEL).names == ("a", "b", "none", "scalar")


def test_instruction_comes_back_as_it_went_and_read_only():
    sent = Instruction("run", 2, "schema", MODEL)
    got = wire.decode_instruction(wire.encode_instruction(sent))
    assert (got.run, got.round, got.schema_hash) == ("run", 2, "schema")
    assert got.arrays.keys() == MODEL.keys()
    for name, array in MODEL.items():
        assert got.arrays[name].shape == array.shape
        assert np.array_equal(got.arrays[name], array)
        assert not got.arrays[name].flags.writeable


def test_update_comes_back_as_it_went():
    reply = wire.decode_reply(wire.encode_update(Update()))
    assert (reply.cluster, reply.round, reply.schema_hash, reply.ledger_head) == ("a", 3, "s", "h")
    assert (reply.epsilon, reply.delta, reply.unit, reply.spent) == (1.5, 1e-5, "transition", False)
    assert wire.decode_update(reply, wire.layout_of(MODEL)).tolist() == [3, 4, 1, 2, 5]


def test_update_without_privacy_has_no_epsilon():
    reply = wire.decode_reply(wire.encode_update(Update(epsilon=None, delta=None, unit="")))
    assert (reply.epsilon, reply.delta, reply.unit) == (None, None, "")


def test_spent_has_no_arrays():
    content = wire.encode_spent("a", 4, "s")
    assert list(content.array_records) == []
    assert wire.decode_reply(content).spent


def test_hello_comes_back_as_it_went():
    assert wire.decode_hello(wire.encode_hello(Hello("a", "s"))) == Hello("a", "s", wire.PROTOCOL)


def test_flower_itself_reads_the_payload():
    (record,) = wire.encode_update(Update()).array_records.values()
    (array,) = record.values()
    assert array.numpy().tolist() == [3, 4, 1, 2, 5]
    assert array.numpy().dtype == np.float32


def test_arrays_that_are_not_contiguous_are_sent_in_c_order():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3).T
    reply = wire.decode_reply(wire.encode_update(Update(arrays={"m": matrix})))
    assert wire.decode_update(reply, wire.layout_of({"m": matrix})).tolist() == [0, 3, 1, 4, 2, 5]


def test_only_float32_is_sent():
    with pytest.raises(TypeError, match="float64"):
        wire.encode_update(Update(arrays={"x": np.zeros(2)}))


def _content(
    layout='[["x", 2]]', data=None, dtype="float32", stype="numpy.ndarray", keys=("vector",), **about
):
    good = Array(np.zeros(2, np.float32))
    array = Array(dtype, good.shape, stype, good.data if data is None else data)
    head = {"cluster": "a", "round": 1, "schema": "s", "layout": layout, **about}
    arrays = ArrayRecord(dict.fromkeys(keys, array))
    return RecordDict({"update": arrays, "about": ConfigRecord(head)})


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (_content(layout='[["y", 2]]'), "keys"),
        (_content(layout='[["x", 2], ["y", 0]]'), "keys"),
        (_content(layout="[]"), "keys"),
        (_content(layout='[["x", 1, 2]]'), "shape"),
        (_content(layout='[["x", 3]]'), "shape"),
        (_content(dtype="int64"), "dtype"),
        (_content(data=b""), "malformed"),
        (_content(data=b"x" * 136), "malformed"),
        (_content(stype="torch"), "malformed"),
        (_content(keys=("vector", "more")), "malformed"),
        (_content(keys=()), "malformed"),
        (_content(layout="{"), "malformed"),
        (_content(layout='[["x", -2]]'), "malformed"),
        (_content(layout='[["x", 2], ["x", 2]]'), "malformed"),
        (_content(layout='[["x", 1e9]]'), "malformed"),
        (_content(layout="[7]"), "malformed"),
        (_content(layout="[" * 100_000), "malformed"),
    ],
)
def test_an_update_of_another_form_is_named(content, kind):
    reply = wire.decode_reply(content)
    with pytest.raises(WireError) as caught:
        wire.decode_update(reply, wire.layout_of({"x": np.zeros(2, np.float32)}))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"about": ArrayRecord()}),
        RecordDict({"about": ConfigRecord({"cluster": "a", "round": 1, "schema": "s"})}),
        _content(cluster=3),
        _content(round=True),
        _content(round="1"),
        _content(epsilon="none"),
        _content(epsilon=float("inf"), delta=1e-5),
        _content(epsilon=1.0, delta=0.0),
        _content(delta=1e-5),
    ],
)
def test_what_is_no_reply_is_malformed(content):
    with pytest.raises(WireError, match="malformed"):
        wire.decode_reply(content)


def test_nothing_phones_home():
    code = (
        "import os, shoal_common.wire; import flwr.supercore.telemetry as t; "
        "print(t.FLWR_TELEMETRY_ENABLED, os.environ['FLWR_DISABLE_UPDATE_CHECK'],"
        " os.environ['FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION'], os.environ['RAY_USAGE_STATS_ENABLED'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "1", "0"]
