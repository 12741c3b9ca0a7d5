# SPDX-License-Identifier: Apache-2.0
"""The messages of deploy/proto/shoal/v1alpha1/scorer.proto, built from their fields.

Generated modules are tied to the protobuf release that made them; the message format is not. A test compiles
the published file with protoc and holds it equal to these.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, SERVICE, METHOD = "shoal.v1alpha1", "Scorer", "Score"
FILE = "shoal/v1alpha1/scorer.proto"

_KIND: Any = descriptor_pb2.FieldDescriptorProto
_FIELDS: dict[str, tuple[tuple[str, int, bool], ...]] = {  # name, type, repeated; numbered from 1
    "ScoreRequest": (
        ("pod_json", _KIND.TYPE_BYTES, False),
        ("node_names", _KIND.TYPE_STRING, True),
    ),
    "ScoreReply": (
        ("scores", _KIND.TYPE_INT32, True),
        ("scale", _KIND.TYPE_INT32, False),
        ("neutral", _KIND.TYPE_BOOL, False),
        ("reason", _KIND.TYPE_STRING, False),
        ("policy_digest", _KIND.TYPE_STRING, False),
    ),
}


def file_descriptor() -> Any:
    """The file as a FileDescriptorProto, without its comments."""
    file: Any = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for number, (name, kind, repeated) in enumerate(fields, start=1):
            label = _KIND.LABEL_REPEATED if repeated else _KIND.LABEL_OPTIONAL
            described.field.add(name=name, number=number, type=kind, label=label)
    method = file.service.add(name=SERVICE).method.add(name=METHOD)
    method.input_type, method.output_type = (f".{PACKAGE}.{name}" for name in _FIELDS)
    return file


_POOL: Any = descriptor_pool.DescriptorPool()
_POOL.Add(file_descriptor())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ScoreRequest: Any = _message("ScoreRequest")
ScoreReply: Any = _message("ScoreReply")
