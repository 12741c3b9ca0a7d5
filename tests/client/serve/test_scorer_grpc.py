# SPDX-License-Identifier: Apache-2.0
"""The gRPC scorer on a real unix socket: the extender's answers, in one call a pod."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal_client.serve.scorer_grpc import ScorerServer
from shoal_client.serve.scorer_messages import METHOD, PACKAGE, SERVICE, ScoreReply, ScoreRequest
from shoal_common.errors import InputError
from shoal_simulations.control_plane.builders import pod

from .conftest import World

Call = Callable[..., Any]


@pytest.fixture
def call(world: World, tmp_path: Path) -> Iterator[Call]:
    path = tmp_path / "scorer.sock"
    with socket.socket(socket.AF_UNIX) as left:  # by an earlier process
        left.bind(str(path))
    server = ScorerServer(world.service, path)
    server.start()
    assert path.stat().st_mode & 0o777 == 0o660
    channel = grpc.insecure_channel(f"unix:{path}")
    yield channel.unary_unary(
        f"/{PACKAGE}.{SERVICE}/{METHOD}", ScoreRequest.SerializeToString, ScoreReply.FromString
    )
    channel.close()
    server.stop()
    assert not path.exists()


def request(world: World, *names: str, **fields: Any) -> Any:
    obj = world.stamped(pod("p", **fields))
    return ScoreRequest(pod_json=json.dumps(obj).encode(), node_names=names)


def test_one_call_gives_the_extenders_scores(world: World, call: Call) -> None:
    reply = call(request(world, "n0", "n1", "n2", "n3"), timeout=10)
    assert list(reply.scores) == world.scores(world.asked())
    assert (reply.scale, reply.neutral, reply.reason) == (10, False, "")
    assert reply.policy_digest == world.decider.digest
    assert [more["source"] for _, more in world.recorded.decisions] == ["grpc", "extender"]


def test_where_the_policy_has_no_say_the_reply_says_why(world: World, call: Call) -> None:
    world.policy(mode="Off")
    reply = call(request(world, "n0", "n1"), timeout=10)
    assert (list(reply.scores), reply.neutral, reply.reason) == ([0, 0], True, "off")


def test_a_pod_that_cannot_be_read_is_an_error_of_the_caller(call: Call) -> None:
    for text in (b"", b"{", b'{"metadata":{}}'):
        with pytest.raises(grpc.RpcError) as caught:
            call(ScoreRequest(pod_json=text, node_names=["n0"]), timeout=10)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_path_that_cannot_be_bound_is_said(world: World, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--grpc-socket: cannot be bound"):
        ScorerServer(world.service, tmp_path / "missing" / "scorer.sock")


def test_a_file_that_is_no_socket_stays(world: World, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("words")
    with pytest.raises(InputError, match="something other than a socket is there"):
        ScorerServer(world.service, tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == "words"
