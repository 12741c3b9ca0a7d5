# SPDX-License-Identifier: Apache-2.0
"""The trainer process: a unix socket before one thread that trains. Knows sockets, and nothing of learning.

Each connection has a thread that shows signs of life while its request waits or runs; rounds run one after
the other in the thread that called `serve`. Whoever asked may go away: the round is finished and stored, and
who asks for it next gets it. Only the process's own user reaches the socket (0600).
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, final

from shoal_client.lock_file import hold
from shoal_client.socket_path import make_way
from shoal_client.train import RoundConfig
from shoal_client.training.remote import BUSY_SECONDS, Header, Scalar, error_header, receive_frame, send_frame
from shoal_common.errors import InputError

if TYPE_CHECKING:
    from shoal_client.train import Arrays
    from shoal_common.privacy.shared_update import SharedUpdate

REQUEST_SECONDS: Final = 30.0  # for a request to arrive, and for its answer to be taken
BACKLOG: Final = 16

_log = logging.getLogger("shoal.client.trainer")


class Rounds(Protocol):
    """What trains."""

    def round(
        self, global_state: Arrays, config: RoundConfig, settings: Mapping[str, Scalar]
    ) -> SharedUpdate:
        """The update of a round under a run's settings; a stored one is returned as it is."""

    def publish(self) -> None:
        """What is done after an answer was given."""


@dataclass(slots=True, eq=False)
class _Job:
    """A request on its way through the training thread."""

    header: Header
    body: bytes
    done: threading.Event = field(default_factory=threading.Event)
    answer: Header = field(default_factory=dict)
    update: bytes = b""


@final
class TrainerServer:
    """Serves rounds at a socket until it is stopped."""

    def __init__(self, path: Path, rounds: Rounds) -> None:
        """Listen.

        Raises:
            InputError: another trainer listens there, or the path cannot be used.
        """
        self._path, self._rounds = path, rounds
        self._jobs: queue.Queue[_Job] = queue.Queue()
        self._stop = threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _alone(path)
            make_way(path)
            self._socket = _listen(path)
        except OSError as error:
            remedy = "give a path of at most 107 bytes in a directory that can be written"
            raise InputError(str(path), "socket", error.strerror or str(error), remedy) from error
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)

    def serve(self) -> None:
        """Train whatever is asked for, in this thread, until `stop`."""
        self._acceptor.start()
        while not self._stop.is_set():
            try:
                job = self._jobs.get(timeout=0.2)
            except queue.Empty:
                continue
            self._run(job)
            job.done.set()
            if job.answer["state"] == "done" and self._jobs.empty():
                self._publish()

    def stop(self) -> None:
        """Take nothing more; a round that runs is finished. Safe in a signal handler."""
        self._stop.set()

    def close(self) -> None:
        """Give up the socket."""
        self._stop.set()
        self._socket.close()
        self._path.unlink(missing_ok=True)
        os.close(self._lock)

    def _run(self, job: _Job) -> None:
        from safetensors.numpy import load

        try:
            asked = job.header
            config = RoundConfig(int(asked["round"]), str(asked["run"]), str(asked["schema"]))
            update = self._rounds.round(load(job.body), config, asked["settings"])
            job.update, job.answer = update.to_bytes(), {"state": "done"}
        except Exception as error:  # whatever it is, the next round may be well
            _log.exception("round %s failed", job.header.get("round"))
            job.answer = error_header(error)

    def _publish(self) -> None:
        try:
            self._rounds.publish()
        except Exception:  # the round itself is safe
            _log.exception("the new policy is not published")

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                peer, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(peer,), name="peer", daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            peer.settimeout(REQUEST_SECONDS)
            try:
                header, body = receive_frame(peer)
                if header.get("ask") == "ping":
                    send_frame(peer, {"state": "done"})
                    return
                job = _Job(header, body)
                self._jobs.put(job)
                while not job.done.wait(BUSY_SECONDS):
                    send_frame(peer, {"state": "busy"})
                send_frame(peer, job.answer, job.update)
            except OSError as error:  # it went away; what it asked for is done all the same
                _log.info("a peer went away: %s", error)


def _alone(path: Path) -> int:
    descriptor = hold(path.with_name(path.name + ".lock"))
    if descriptor is None:
        remedy = "stop it, or give another socket"
        raise InputError(str(path), "socket", "another trainer listens there", remedy)
    return descriptor


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    return listener
