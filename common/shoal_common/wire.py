# SPDX-License-Identifier: Apache-2.0
"""The contract of every message that crosses between client and server: plain values <-> Flower records.

Three exchanges, all on Flower's Message API:

- `query.hello`: who are you; the answer is a `Hello` (cluster, schema, protocol).
- `train`: an `Instruction` (global arrays, round); the answer is a `Reply`, either an update or "spent".
- an error reply, Flower's own, where the client raised.

Arrays travel as `numpy.ndarray` payloads, float32, little endian, C order, so that Flower's own tools read
them. The header of such a payload is a constant of its shape: encoding is one join, decoding is one view of
the immutable bytes. What was decoded is therefore read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Final, Protocol, TypeVar

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
_GLOBAL, _UPDATE, _ABOUT = "global", "update", "about"
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
    ledger_head: str = ""
    epsilon: float | None = None
    delta: float | None = None
    unit: str = ""

    @property
    def spent(self) -> bool:
        """True where the cluster keeps receiving but ships nothing any more."""
        return self.record is None


@lru_cache(maxsize=4096)
def _header(shape: tuple[int, ...]) -> bytes:
    """The `.npy` header of a float32 array of this shape."""
    buffer = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def encode_arrays(arrays: Arrays) -> ArrayRecord:
    """Float32 arrays as a record, with one copy; any other dtype is a `TypeError` of the caller."""
    record = ArrayRecord()
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise TypeError(f"{name}: only float32 crosses the wire, not {array.dtype}")
        # ascontiguousarray would make 1-d of 0-d
        flat = np.ascontiguousarray(array).reshape(-1)
        data = b"".join((_header(array.shape), flat.data.cast("B") if flat.size else b""))
        record[name] = Array("float32", array.shape, _STYPE, data)
    return record


def _view(name: str, array: Array, shape: tuple[int, ...]) -> F32:
    """Read-only view of one payload whose shape is already known; nothing is allocated for a liar."""
    header = _header(shape)
    if array.stype != _STYPE or len(array.data) != len(header) + 4 * int(np.prod(shape)):
        raise WireError("malformed", f"{name}: {len(array.data)} bytes of {array.stype}")
    if not array.data.startswith(header):
        raise WireError("malformed", f"{name}: not a float32 payload of shape {shape}")
    return np.ndarray(shape, dtype="<f4", buffer=array.data, offset=len(header))


def decode_arrays(record: ArrayRecord) -> dict[str, F32]:
    """All arrays of a record as read-only views; for a receiver that trusts the sender's shapes."""
    return {name: _view(name, array, tuple(array.shape)) for name, array in record.items()}


def decode_like(record: ArrayRecord, like: Arrays) -> dict[str, F32]:
    """The arrays of a record that must have exactly the keys and shapes of `like`; raises `WireError`."""
    if record.keys() != like.keys():
        odd = sorted(record.keys() ^ like.keys())
        raise WireError("keys", f"missing or unknown: {', '.join(odd[:3])} ({len(odd)} in all)")
    views: dict[str, F32] = {}
    for name, expected in like.items():
        array = record[name]
        if array.dtype != "float32":
            raise WireError("dtype", f"{name}: {array.dtype} instead of float32")
        if tuple(array.shape) != expected.shape:
            raise WireError("shape", f"{name}: {tuple(array.shape)} instead of {expected.shape}")
        views[name] = _view(name, array, expected.shape)
    return views


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
    return RecordDict({_GLOBAL: encode_arrays(instruction.arrays), _ABOUT: _record(about)})


def decode_instruction(content: RecordDict) -> Instruction:
    """Raises `WireError`; the arrays are read-only views of the message."""
    about = _about(content)
    arrays = decode_arrays(_arrays(content, _GLOBAL))
    return Instruction(_get(about, "run", str), _get(about, "round", int), _get(about, "schema", str), arrays)


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
    return RecordDict({_UPDATE: encode_arrays(update.arrays), _ABOUT: _record(about)})


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
    """Everything but the arrays, which `decode_like` reads against the global ones; raises `WireError`."""
    about = _about(content)
    record = None if about.get("spent") is True else _arrays(content, _UPDATE)
    return Reply(
        cluster=_get(about, "cluster", str),
        round=_get(about, "round", int),
        schema_hash=_get(about, "schema", str),
        record=record,
        ledger_head=_optional(about, "ledger-head", str) or "",
        epsilon=_optional(about, "epsilon", float),
        delta=_optional(about, "delta", float),
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
