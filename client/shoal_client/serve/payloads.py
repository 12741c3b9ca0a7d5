# SPDX-License-Identifier: Apache-2.0
"""The extender's wire format: what kube-scheduler sends and exactly what it takes.

Source: k8s.io/kube-scheduler/extender/v1 (types.go). Its structs carry no JSON names, so the outer keys are
capitalised and the objects inside are ordinary Kubernetes JSON. Input is read in any letter case, output has
the exact one. A request names its nodes (`nodeCacheCapable: true`) or holds them whole; either is answered
in kind. Scores are integers: a single float makes the scheduler drop the whole list.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec

from shoal_client.state.reading import Reader
from shoal_common.errors import InputError
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.pods import PodRecord

WHERE = "extender request"
READ_PODS = 1024
"""Pods that are kept read: filter and prioritize of one attempt carry the same one."""
KEPT_BYTES = 64 * 1024
"""Larger ones are read each time: a thousand of the largest that etcd takes would be 1.5 GB."""

_reader, _reading = Reader(READ_PODS), threading.Lock()
"""Pods of one owner share what is computed of their requests, which takes longer than all other reading."""


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    pod: msgspec.Raw = msgspec.Raw(b"null")
    nodes: _List | None = None
    node_names: list[str] | None = None


class _Priority(msgspec.Struct, gc=False):
    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class Binding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pod the scheduler wants bound where."""

    pod_name: str = msgspec.field(default="", name="PodName")
    pod_namespace: str = msgspec.field(default="", name="PodNamespace")
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = msgspec.field(default="", name="Node")


class _Victim(msgspec.Struct):
    uid: str = msgspec.field(default="", name="UID")


class MetaVictims(msgspec.Struct):
    """Pods that would have to go from one node, by uid."""

    pods: list[_Victim] | None = msgspec.field(default=None, name="Pods")
    pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")

    @property
    def uids(self) -> tuple[str, ...]:
        """The victims' uids."""
        return tuple(victim.uid for victim in self.pods or ())


class _Victims(msgspec.Struct, rename="pascal"):
    pods: list[_Object] | None = None
    pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _Preemption(msgspec.Struct, forbid_unknown_fields=True):
    full: dict[str, _Victims] | None = msgspec.field(default=None, name="NodeNameToVictims")
    meta: dict[str, MetaVictims] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")


Type = TypeVar("Type", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Candidates:
    """One filter or prioritize request: a pod and N nodes, by name and, where they were sent, whole."""

    pod: PodRecord
    names: Sequence[str]
    nodes: Sequence[msgspec.Raw] | None = None  # as they came, in the order of `names`


def read_candidates(body: bytes) -> Candidates:
    """Read a filter or prioritize request.

    Raises:
        InputError: it is no such request, or holds neither nodes nor their names.
    """
    args = _read(body, _Args)
    pod = _pod(args.pod)
    if args.node_names is not None:
        return Candidates(pod, args.node_names)
    if args.nodes is None:
        raise InputError(WHERE, "NodeNames", "is null and so is Nodes", "send one of them")
    whole = args.nodes.items or []
    return Candidates(pod, [_object(raw).metadata.name for raw in whole], whole)


def read_pod_json(text: bytes) -> PodRecord:
    """A pod as the API writes it; raises InputError."""
    return _pod(msgspec.Raw(text))


def read_binding(body: bytes) -> Binding:
    """Read a bind request; raises InputError when it is none or a field of it is empty."""
    binding = _read(body, Binding)
    for name in ("pod_name", "pod_namespace", "pod_uid", "node"):
        if not getattr(binding, name):
            raise InputError(WHERE, name, "is empty", "send what kube-scheduler sends")
    return binding


def read_victims(body: bytes) -> dict[str, MetaVictims]:
    """The victims by node of a preempt request, full pods reduced to their uids; raises InputError."""
    request = _read(body, _Preemption)
    if request.meta is not None:
        return request.meta
    return {
        node: MetaVictims([_Victim(pod.metadata.uid) for pod in victims.pods or ()], victims.pdb_violations)
        for node, victims in (request.full or {}).items()
    }


def write_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """One host and integer score for every name, in their order."""
    return msgspec.json.encode([_Priority(name, score) for name, score in zip(names, scores, strict=True)])


def write_filtered(
    asked: Candidates,
    kept: Sequence[int],
    failed: Mapping[str, str] | None = None,
    unresolvable: Mapping[str, str] | None = None,
) -> bytes:
    """The nodes at the positions `kept` as they were sent, and why the others cannot take the pod."""
    nodes = None if asked.nodes is None else {"items": [asked.nodes[i] for i in kept]}
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": [asked.names[i] for i in kept] if nodes is None else None,
            "FailedNodes": failed or {},
            "FailedAndUnresolvableNodes": unresolvable or {},
            "Error": "",
        }
    )


def write_victims(victims: Mapping[str, MetaVictims]) -> bytes:
    """The nodes on which these victims may go; without any there is no preemption."""
    return msgspec.json.encode({"NodeNameToMetaVictims": dict(victims)})


def write_error(message: str = "") -> bytes:
    """An Error, which is how filter and bind refuse; an empty one is a success of bind."""
    return msgspec.json.encode({"Error": message})


def _read(body: bytes, kind: type[Type]) -> Type:
    """Decode by exact keys, and where none of them is there by their letters alone."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:  # of a key that it does not know, or of a value: then below again
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error) from error
    try:
        found, exact = msgspec.json.decode(body, type=dict[str, msgspec.Raw]), _keys(kind)
        known = {exact[key.lower()]: value for key, value in found.items() if key.lower() in exact}
        return msgspec.json.decode(msgspec.json.encode(known), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> InputError:
    return InputError(WHERE, "body", f"cannot be read ({error})", "send what kube-scheduler sends")


@cache
def _keys(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The exact keys of a request by their small letters."""
    return {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(kind)}


def _object(raw: msgspec.Raw) -> _Object:
    try:
        return msgspec.json.decode(raw, type=_Object)
    except msgspec.DecodeError as error:
        raise InputError(WHERE, "Nodes", f"cannot be read ({error})", "send whole nodes or names") from error


def _pod(raw: msgspec.Raw) -> PodRecord:
    """The pod, read once for every version of it that is sent."""
    head = _object(raw).metadata if bytes(raw) != b"null" else _Metadata()
    if not head.name or not head.uid:
        raise InputError(WHERE, "Pod", "has no name or no uid", "send what kube-scheduler sends")
    text = bytes(raw)
    return _read_pod(text) if len(text) <= KEPT_BYTES else read_pod(Field(WHERE, "Pod", _decoded(text)))


@lru_cache(READ_PODS)
def _read_pod(text: bytes) -> PodRecord:
    document = _decoded(text)
    with _reading:
        return _reader.pod(document, WHERE, "Pod")


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            WHERE, "Pod", f"cannot be read ({error})", "send what kube-scheduler sends"
        ) from error
