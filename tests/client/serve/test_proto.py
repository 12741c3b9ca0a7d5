# SPDX-License-Identifier: Apache-2.0
"""The messages in code and the published .proto file are the same."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pb2

from shoal_client.serve.scorer_messages import FILE, ScoreReply, ScoreRequest, file_descriptor

FOLDER = Path(__file__).parents[3] / "deploy" / "proto"


def test_the_published_file_compiles_to_our_messages(tmp_path: Path) -> None:
    from grpc_tools import protoc

    out = tmp_path / "set.binpb"
    assert protoc.main(["protoc", f"-I{FOLDER}", f"--descriptor_set_out={out}", FILE]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert compiled == file_descriptor()


def test_messages_survive_the_wire() -> None:
    asked = ScoreRequest(pod_json=b"{}", node_names=["a", "b"])
    assert list(ScoreRequest.FromString(asked.SerializeToString()).node_names) == ["a", "b"]
    reply = ScoreReply(scores=[1, 0], scale=10, reason="off", neutral=True)
    assert list(ScoreReply.FromString(reply.SerializeToString()).scores) == [1, 0]
