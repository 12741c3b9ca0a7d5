# SPDX-License-Identifier: Apache-2.0
"""W worker processes, each with a fixed share of the clusters: one torch thread each, no Ray.

A worker is `python -m shoal_simulations.shards`, joined to its parent by one socket. It dies with its parent
however that ends: a thread of its own reads the socket and leaves the process when it closes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final, final

from flwr.app import Error, Message

from shoal_simulations.grid import CLIENT_RAISED, Host, NodeConfig

# Per-sample gradients allocate large blocks each step; glibc reads these when the process starts.
_ENVIRONMENT: Final = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_WAIT_SECONDS: Final = 0.2
_END_SECONDS: Final = 5.0
CLIENT: Final = "shoal_client.app:make_app"


@dataclass(slots=True)
class _Shard:
    """One worker: its process, its socket and the messages it has not answered."""

    process: subprocess.Popen[bytes]
    connection: Connection
    open: dict[str, Message] = field(default_factory=dict)


@final
class Shards:
    """An executor over worker processes; node i belongs to worker i mod W for good."""

    def __init__(
        self, nodes: Mapping[int, NodeConfig], run_config: NodeConfig, workers: int, client: str = CLIENT
    ) -> None:
        self._owner = {node: index % workers for index, node in enumerate(nodes)}
        self._setups = [
            (client, {node: nodes[node] for node in nodes if self._owner[node] == index}, run_config)
            for index in range(workers)
        ]
        self._shards = [_start(setup) for setup in self._setups]

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [shard.process.pid for shard in self._shards]

    def submit(self, messages: Sequence[Message]) -> None:
        """Send each worker its messages at once: the model they share is written once per worker."""
        for index, shard in enumerate(self._shards):
            mine = [m for m in messages if self._owner[m.metadata.dst_node_id] == index]
            if not mine:
                continue
            if shard.process.poll() is not None:  # it died in an earlier round; its state is on disk
                shard = self._shards[index] = _start(self._setups[index])  # noqa: PLW2901
            shard.open |= {m.metadata.message_id: m for m in mine}
            with contextlib.suppress(OSError):  # it dies at this moment: `collect` sees it
                shard.connection.send_bytes(pickle.dumps(mine, protocol=5))

    def collect(self) -> list[Message]:
        """Replies that have come; waits for the first one a moment."""
        replies: list[Message] = []
        by_connection = {shard.connection: shard for shard in self._shards if shard.open}
        for connection in wait(list(by_connection), _WAIT_SECONDS):
            replies += _receive(by_connection[connection])  # type: ignore[index]  # only ours were passed in
        return replies

    def close(self) -> None:
        """Close the sockets, which ends the workers; kill whoever lingers."""
        for shard in self._shards:
            shard.connection.close()
        for shard in self._shards:
            try:
                shard.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                shard.process.kill()
                shard.process.wait()


def _start(setup: tuple[str, Mapping[int, NodeConfig], NodeConfig]) -> _Shard:
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal_simulations.shards", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path},
        )
    connection = Connection(ours.detach())
    connection.send_bytes(pickle.dumps(setup, protocol=5))
    return _Shard(process, connection)


def _receive(shard: _Shard) -> list[Message]:
    """All replies that lie ready; error replies for everything open where the worker died."""
    replies: list[Message] = []
    try:
        while shard.connection.poll():
            reply: Message = pickle.loads(shard.connection.recv_bytes())
            shard.open.pop(reply.metadata.reply_to_message_id, None)
            replies.append(reply)
    except (EOFError, OSError):
        status = shard.process.wait()
        reason = f"worker {shard.process.pid} ended with status {status}"
        replies += [Message(Error(CLIENT_RAISED, reason), reply_to=m) for m in shard.open.values()]
        shard.open.clear()
    return replies


def _read(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    """The worker's reading thread: the parent is gone when nothing can be read, and so are we."""
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _work(descriptor: int) -> None:
    """The worker: the first message is its setup, then batches of messages, answered one by one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes the socket
    connection = Connection(descriptor)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    reference, nodes, run_config = pickle.loads(inbox.get())
    module, _, name = reference.partition(":")
    make: Any = getattr(importlib.import_module(module), name)
    host = Host(make(), nodes, run_config)
    while True:
        for message in pickle.loads(inbox.get()):
            try:
                connection.send_bytes(pickle.dumps(host.handle(message), protocol=5))
            except OSError:  # the parent closed while we were at work
                os._exit(0)


if __name__ == "__main__":
    _work(int(sys.argv[1]))
