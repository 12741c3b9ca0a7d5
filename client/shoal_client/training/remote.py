# SPDX-License-Identifier: Apache-2.0
"""The trainer of a live cluster, as Flower's shim sees it: a process behind a unix socket. No torch here.

    run configuration  trainer = "shoal_client.training.remote:make_trainer"
    node configuration cluster = "NAME"  trainer-socket = "/var/lib/shoal/trainer.sock"

A frame is the lengths of a JSON header (4 bytes) and of a body (8 bytes, both big-endian), then the two. A
request is answered by `busy` frames, one a second, until it is done. A trainer that dies or falls silent is
asked again: a round is idempotent by its number, so whatever it had done is found or done again, and its
ledger row is written once (see `shoal_client.train`).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from shoal_client.train import RoundConfig
from shoal_common.errors import (
    BudgetExhausted,
    Fatal,
    InputError,
    LedgerCorrupt,
    SchemaMismatch,
    ShoalError,
    Transient,
)
from shoal_common.privacy.shared_update import SharedUpdate

if TYPE_CHECKING:
    from shoal_client.train import Arrays

Scalar = bool | int | float | str
Header = dict[str, Any]

DEFAULT_SOCKET: Final = "/var/lib/shoal/trainer.sock"
BUSY_SECONDS: Final = 1.0  # between two signs of life
SILENT_SECONDS: Final = 30.0  # without one: it hangs
CONNECT_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 300.0  # that a trainer may be away, in all, before a round is given up
LONGEST_HEADER, LONGEST_BODY = 1 << 20, 1 << 30
_LENGTHS = struct.Struct(">IQ")
_ERRORS: Final = {
    kind.__name__: kind for kind in (Transient, Fatal, SchemaMismatch, LedgerCorrupt, BudgetExhausted)
}


class Broken(OSError):
    """The other side went away, or speaks another protocol."""


def send_frame(peer: socket.socket, header: Mapping[str, Any], body: bytes = b"") -> None:
    """Send one frame; raises OSError (also TimeoutError) where the peer takes nothing."""
    head = json.dumps(header).encode()
    peer.sendall(_LENGTHS.pack(len(head), len(body)) + head)
    if body:  # a peer that has read a frame without a body may be gone, and sending nothing would fail
        peer.sendall(body)


def receive_frame(peer: socket.socket) -> tuple[Header, bytes]:
    """Receive one frame; raises OSError, `Broken` where it ends early or is none."""
    head_size, body_size = _LENGTHS.unpack(_receive(peer, _LENGTHS.size))
    if head_size > LONGEST_HEADER or body_size > LONGEST_BODY:
        raise Broken("a frame is too long")
    try:
        header = json.loads(_receive(peer, head_size))
    except ValueError as error:
        raise Broken("a frame's header is no JSON") from error
    if not isinstance(header, dict):
        raise Broken("a frame's header is no object")
    return header, _receive(peer, body_size)


def _receive(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = peer.recv(min(size - len(data), 1 << 20))
        if not part:
            raise Broken("the connection was closed")
        data += part
    return bytes(data)


def error_header(error: BaseException) -> Header:
    """An error as a frame's header. Both sides are this cluster's own, so its text goes along."""
    if isinstance(error, InputError):
        says = [error.where, error.field, error.problem, error.remedy]
    else:
        says = [str(error)]
    return {"state": "failed", "error": type(error).__name__, "says": says}


def _raised(header: Header) -> ShoalError:
    """The error that the trainer raised, or one that stands for it."""
    name, says = str(header.get("error")), [str(text) for text in header.get("says") or [""]]
    if name == InputError.__name__ and len(says) == 4:
        return InputError(*says)
    return _ERRORS[name](says[0]) if name in _ERRORS else Fatal(f"the trainer failed: {name}: {says[0]}")


@final
class RemoteTrainer:
    """A `Trainer` that hands each round to the process at a socket."""

    def __init__(
        self,
        path: Path,
        run_config: Mapping[str, Scalar],
        patience_seconds: float = PATIENCE_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._path, self._settings = path, dict(run_config)
        self._patience, self._silent = patience_seconds, silent_seconds

    def round(self, global_state: Arrays, config: RoundConfig) -> SharedUpdate:
        """The update of this round, trained there now or before.

        Raises:
            Transient: no trainer answered for too long.
            ShoalError: what the trainer raised.
        """
        from safetensors.numpy import save

        request = {
            "ask": "round",
            "round": config.round,
            "run": config.run,
            "schema": config.schema_hash,
            "settings": self._settings,
        }
        body = save({name: np.ascontiguousarray(array) for name, array in global_state.items()})
        return SharedUpdate.from_bytes(self._insist(request, body))

    def _insist(self, request: Header, body: bytes) -> bytes:
        """Ask until there is an answer, through any number of restarts within the patience."""
        away, pause = 0.0, 0.1
        while True:
            begin = time.monotonic()
            try:
                return ask(self._path, request, body, self._silent)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    away += time.monotonic() - begin
                if away >= self._patience:
                    raise Transient(
                        f"no trainer at {self._path} ({error}); see the log of shoal client run"
                    ) from error
                time.sleep(pause)
                away, pause = away + pause, min(2 * pause, 5.0)


def ask(path: Path, request: Header, body: bytes = b"", silent_seconds: float = SILENT_SECONDS) -> bytes:
    """One request and the body of its answer.

    Raises:
        OSError: nobody is there, or it went away or fell silent before it answered.
        ShoalError: what the trainer raised.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(CONNECT_SECONDS)
        peer.connect(str(path))
        peer.settimeout(silent_seconds)
        send_frame(peer, request, body)
        while True:
            header, answer = receive_frame(peer)
            if header.get("state") == "done":
                return answer
            if header.get("state") == "failed":
                raise _raised(header)


def make_trainer(node_config: Mapping[str, Scalar], run_config: Mapping[str, Scalar]) -> RemoteTrainer:
    """The trainer that a run configuration names; the socket is the node's `trainer-socket`, else what
    $SHOAL_TRAINER_SOCKET says."""
    path = node_config.get("trainer-socket") or os.environ.get("SHOAL_TRAINER_SOCKET") or DEFAULT_SOCKET
    return RemoteTrainer(Path(str(path)), run_config)
