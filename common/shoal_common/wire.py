# SPDX-License-Identifier: Apache-2.0
"""The contract of every message that crosses between client and server: plain values <-> Flower records.

Three exchanges, all on Flower's Message API:

- `query.hello`: who are you; the answer is a `Hello` (cluster, schema, protocol).
- `train`: an `Instruction` (global arrays, round); the answer is a `Reply`, either an update or "spent".
- an error reply, Flower's own, where the client raised: `describe_error` says all that it may hold.

A model crosses as one float32 vector, its arrays in the order of their names; names and shapes (the layout)
stand beside it as text and must be equal to the last character. The vector is an ordinary `numpy.ndarray`
payload that Flower's own tools read. Its header is a constant of its size, so encoding is one join and
decoding one view of the immutable bytes: what was decoded is read-only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Final, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from shoal_common.errors import Fatal

PROTOCOL: Final = 1  # grows when a message changes; two sides with different numbers refuse each other
TRAIN: Final = "train"
HELLO_ACTION: Final = "hello"
HELLO: Final = f"query.{HELLO_ACTION}"

F32 = npt.NDArray[np.float32]
Arrays = Mapping[str, F32]

_STYPE: Final = "numpy.ndarray"
_GLOBAL, _UPDATE, _ABOUT, _VECTOR = "global", "update", "about", "vector"
Value = TypeVar("Value", str, int, float)


class WireError(Fatal):
    """A message does not follow the contract; `kind` says how: `keys`, `dtype`, `shape` or `malformed`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class Shipment(Protocol):
    """What an update must say of itself: the attributes of `SharedUpdate`, which alone leaves a cluster."""

    @property
    def cluster(self) -> str: ...  # noqa: D102
    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def schema_hash(self) -> str: ...  # noqa: D102
    @property
    def arrays(self) -> Arrays: ...  # noqa: D102
    @property
    def ledger_head(self) -> str: ...  # noqa: D102
    @property
    def epsilon(self) -> float | None: ...  # noqa: D102
    @property
    def delta(self) -> float | None: ...  # noqa: D102
    @property
    def unit(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's answer to `query.hello`."""

    cluster: str
    schema_hash: str
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Instruction:
    """Train round `round` (from 1) of run `run` from these global arrays."""

    run: str
    round: int
    schema_hash: str
    arrays: Arrays


@dataclass(frozen=True, slots=True)
class Reply:
    """What a cluster answers to an instruction; `record` is None where its privacy budget is spent."""

    cluster: str
    round: int
    schema_hash: str
    record: ArrayRecord | None
    layout: str = ""
    ledger_head: str = ""
    epsilon: float | None = None
    delta: float | None = None
    unit: str = ""

    @property
    def spent(self) -> bool:
        """True where the cluster keeps receiving but ships nothing any more."""
        return self.record is None


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes of a model's arrays, sorted by name: the order in which one vector holds them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    size: int = field(init=False)  # parameters in all

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(math.prod(shape) for shape in self.shapes))

    def unpack(self, vector: F32) -> dict[str, F32]:
        """Views of the vector by name."""
        arrays: dict[str, F32] = {}
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            arrays[name] = vector[start : start + size].reshape(shape)
            start += size
        return arrays


def layout_of(arrays: Arrays) -> Layout:
    """The layout of a model."""
    names = tuple(sorted(arrays))
    return Layout(names, tuple(arrays[name].shape for name in names))


def pack(arrays: Arrays) -> F32:
    """All arrays as one new vector, in the order of their names."""
    parts = [np.asarray(arrays[name], dtype=np.float32).reshape(-1) for name in sorted(arrays)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


@lru_cache(maxsize=16)
def _layout_text(layout: Layout) -> str:
    return json.dumps([[name, *shape] for name, shape in zip(layout.names, layout.shapes, strict=True)])


def _read_layout(text: str) -> Layout:
    """Read a layout; raises `WireError`."""
    try:
        rows = json.loads(text)
        names, shapes = tuple(row[0] for row in rows), tuple(tuple(row[1:]) for row in rows)
    except (ValueError, TypeError, IndexError, KeyError, RecursionError) as error:
        raise WireError("malformed", "the layout cannot be read") from error
    whole = all(type(n) is int and n >= 0 for shape in shapes for n in shape)
    if not whole or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise WireError("malformed", "the layout cannot be read")
    return Layout(names, shapes)


_known_layout = lru_cache(maxsize=16)(_read_layout)


@lru_cache(maxsize=16)
def _header(size: int) -> bytes:
    """The `.npy` header of a float32 vector of this size."""
    buffer = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def _encode(arrays: Arrays) -> tuple[ArrayRecord, str]:
    """A model as a record of one vector, with one copy; any dtype but float32 is the caller's `TypeError`."""
    layout = layout_of(arrays)
    parts: list[bytes | memoryview] = [_header(layout.size)]
    for name in layout.names:
        array = arrays[name]
        if array.dtype != np.float32:
            raise TypeError(f"{name}: only float32 crosses the wire, not {array.dtype}")
        if array.size:
            parts.append(np.ascontiguousarray(array).reshape(-1).data.cast("B"))
    record = ArrayRecord()
    record[_VECTOR] = Array("float32", (layout.size,), _STYPE, b"".join(parts))
    return record, _layout_text(layout)


def decode_vector(record: ArrayRecord, size: int) -> F32:
    """The one vector of a record, a read-only view; nothing is allocated for a liar. Raises `WireError`."""
    if record.keys() != {_VECTOR}:
        raise WireError("malformed", f"{len(record)} arrays where one vector belongs")
    array = record[_VECTOR]
    if array.dtype != "float32":
        raise WireError("dtype", f"{array.dtype} instead of float32")
    header = _header(size)
    if array.stype != _STYPE or len(array.data) != len(header) + 4 * size:
        raise WireError("malformed", f"{len(array.data)} bytes for {size} parameters")
    if not array.data.startswith(header):
        raise WireError("malformed", "not a float32 vector")
    return np.ndarray(size, dtype="<f4", buffer=array.data, offset=len(header))


def decode_update(reply: Reply, expected: Layout) -> F32:
    """The vector of an update that must have exactly this layout; raises `WireError`."""
    if reply.record is None:
        raise WireError("malformed", "no arrays")
    if reply.layout != _layout_text(expected):
        odd = set(_read_layout(reply.layout).names) ^ set(expected.names)  # a liar's text is not remembered
        if odd:
            raise WireError("keys", f"missing or unknown: {', '.join(sorted(odd)[:3])} ({len(odd)} in all)")
        raise WireError("shape", "same arrays in other shapes")
    return decode_vector(reply.record, expected.size)


def describe_error(cluster: str, error: BaseException) -> str:
    """The text of an error reply. What an exception says may name a pod, a path or a value, so it stays in
    the cluster's own log; only its type leaves."""
    return f"{cluster}: {type(error).__name__}; the cause is in this cluster's own log"


def encode_hello(hello: Hello) -> RecordDict:
    """The answer to `query.hello`."""
    about: dict[str, str | int | float] = {
        "cluster": hello.cluster,
        "schema": hello.schema_hash,
        "protocol": hello.protocol,
    }
    return RecordDict({_ABOUT: _record(about)})


def decode_hello(content: RecordDict) -> Hello:
    """Raises `WireError` where a field is absent or of another type."""
    about = _about(content)
    return Hello(_get(about, "cluster", str), _get(about, "schema", str), _get(about, "protocol", int))


def encode_instruction(instruction: Instruction) -> RecordDict:
    """A round's instruction; build it once and share it between the cohort's messages."""
    about: dict[str, str | int | float] = {
        "run": instruction.run,
        "round": instruction.round,
        "schema": instruction.schema_hash,
    }
    record, about["layout"] = _encode(instruction.arrays)
    return RecordDict({_GLOBAL: record, _ABOUT: _record(about)})


def decode_instruction(content: RecordDict) -> Instruction:
    """Raises `WireError`; the arrays are read-only views of the message."""
    about = _about(content)
    layout = _known_layout(_get(about, "layout", str))
    vector = decode_vector(_arrays(content, _GLOBAL), layout.size)
    run, schema_hash = _get(about, "run", str), _get(about, "schema", str)
    return Instruction(run, _get(about, "round", int), schema_hash, layout.unpack(vector))


def encode_update(update: Shipment) -> RecordDict:
    """A cluster's update as the reply's content."""
    about: dict[str, str | int | float] = {
        "cluster": update.cluster,
        "round": update.round,
        "schema": update.schema_hash,
        "ledger-head": update.ledger_head,
        "unit": update.unit,
    }
    optional = {"epsilon": update.epsilon, "delta": update.delta}
    about |= {name: float(value) for name, value in optional.items() if value is not None}
    record, about["layout"] = _encode(update.arrays)
    return RecordDict({_UPDATE: record, _ABOUT: _record(about)})


def encode_spent(cluster: str, round_number: int, schema_hash: str) -> RecordDict:
    """The typed reply of a cluster whose budget is spent: no arrays."""
    about: dict[str, str | int | float] = {
        "cluster": cluster,
        "round": round_number,
        "schema": schema_hash,
        "spent": True,
    }
    return RecordDict({_ABOUT: _record(about)})


def decode_reply(content: RecordDict) -> Reply:
    """Everything but the arrays, which `decode_update` reads against the layout; raises `WireError`."""
    about = _about(content)
    record = None if about.get("spent") is True else _arrays(content, _UPDATE)
    epsilon, delta = _optional(about, "epsilon", float), _optional(about, "delta", float)
    if epsilon is not None and not (0 <= epsilon < math.inf):
        raise WireError("malformed", f"epsilon: {epsilon} is not a finite number from 0")
    if (delta is None) != (epsilon is None) or (delta is not None and not 0 < delta < 1):
        raise WireError("malformed", f"delta: {delta} beside epsilon {epsilon}")
    return Reply(
        cluster=_get(about, "cluster", str),
        round=_get(about, "round", int),
        schema_hash=_get(about, "schema", str),
        record=record,
        layout=_optional(about, "layout", str) or "",
        ledger_head=_optional(about, "ledger-head", str) or "",
        epsilon=epsilon,
        delta=delta,
        unit=_optional(about, "unit", str) or "",
    )


def _record(about: Mapping[str, str | int | float]) -> ConfigRecord:
    return ConfigRecord(dict(about))


def _about(content: RecordDict) -> ConfigRecord:
    record = content.get(_ABOUT)
    if not isinstance(record, ConfigRecord):
        raise WireError("malformed", f"no record named {_ABOUT!r}")
    return record


def _arrays(content: RecordDict, name: str) -> ArrayRecord:
    record = content.get(name)
    if not isinstance(record, ArrayRecord):
        raise WireError("malformed", f"no arrays named {name!r}")
    return record


def _get(about: ConfigRecord, key: str, kind: type[Value]) -> Value:
    value = about.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireError("malformed", f"{key}: {type(value).__name__} instead of {kind.__name__}")
    return value


def _optional(about: ConfigRecord, key: str, kind: type[Value]) -> Value | None:
    return _get(about, key, kind) if key in about else None
