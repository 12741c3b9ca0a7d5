# SPDX-License-Identifier: Apache-2.0
"""The client's two processes, serve and train, each watched by a thread of its own.

What happens to one never touches the other. A process that ends is started again after 1 s, 2 s, ... up to a
minute; one that ran for a minute starts at 1 s again. One that no longer answers its probe is killed, which
is an end like any other. Only one that ends with code 2, which says that its options or files are wrong, is
not started again: it would end so for ever, and the supervisor gives up. The processes end with the
supervisor, however it ends (PR_SET_PDEATHSIG).

As a program (`python -m shoal_client.daemon --parent PID --nice N [--cpus 0,1] -- COMMAND`) a child begins as
this module and becomes the command, lowered in priority and confined to CPUs.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
SOUND_SECONDS: Final = 60.0  # a process that ran so long begins at the first pause again
PROBE_SECONDS: Final = 5.0  # between probes
START_SECONDS: Final = 120.0  # in which a probe may fail after a start
FAILED_PROBES: Final = 6  # in a row: it hangs
END_SECONDS: Final = 3.0  # from SIGTERM to SIGKILL
LOOK_SECONDS: Final = 0.1
WRONG_INPUT: Final = 2  # the exit code of every command of ours whose input is wrong
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

_log = logging.getLogger("shoal.client")


@dataclass(frozen=True, slots=True)
class Program:
    """What runs: a command, how much it may take, and a probe that says whether it lives.

    A probe returns or raises within a few seconds.
    """

    name: str
    command: Sequence[str]
    probe: Callable[[], bool] | None = None
    nice: int = 0
    cpus: frozenset[int] = frozenset()  # CPUs it is confined to; empty: none


@final
class Supervisor:
    """Keeps programs running until `stop`, or until one says that its input is wrong."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._stop = threading.Event()
        self._children = [_Child(program, self._stop) for program in programs]
        self._threads = [threading.Thread(target=c.watch, name=c.name) for c in self._children]

    def start(self) -> None:
        """Start all of them."""
        for thread in self._threads:
            thread.start()

    def wait(self) -> int:
        """Until all is to stop; the exit code then: 0, or 2 where a program's input is wrong."""
        self._stop.wait()
        return WRONG_INPUT if any(child.refused for child in self._children) else 0

    def end(self) -> None:
        """Let `wait` return. Safe in a signal handler."""
        self._stop.set()

    def stop(self) -> None:
        """End all of them, within `END_SECONDS` and a moment."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


@final
class _Child:
    """One program's process, over all its starts."""

    def __init__(self, program: Program, stop: threading.Event) -> None:
        self._program, self._stop = program, stop
        self.name, self.refused = program.name, False

    def watch(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            begin = time.monotonic()
            code = self._run()
            if self._stop.is_set():
                return
            if code == WRONG_INPUT:  # it has said on stderr what is wrong
                self.refused = True
                self._stop.set()
                return
            if time.monotonic() - begin >= SOUND_SECONDS:
                pause = FIRST_PAUSE
            _log.warning("%s ended with %s; starting it again in %g s", self._program.name, code, pause)
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _run(self) -> int | str:
        """Start the process and stay until it has ended, by itself or by us."""
        try:
            process = subprocess.Popen(_begin(self._program))
        except OSError as error:
            return str(error)
        try:
            self._stay(process)
        finally:
            _end(process)
        return process.returncode

    def _stay(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the process has ended, hangs, or everything is to stop."""
        begin = looked = time.monotonic()
        failed = 0
        while process.poll() is None and not self._stop.wait(LOOK_SECONDS):
            if self._program.probe is None or time.monotonic() - looked < PROBE_SECONDS:
                continue
            looked = time.monotonic()
            young = looked - begin < START_SECONDS
            failed = 0 if _lives(self._program.probe) or young else failed + 1
            if failed >= FAILED_PROBES:
                _log.error("%s does not answer; killing it", self._program.name)
                process.kill()
                return


def _lives(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except Exception:  # whatever a probe raises, there was no answer
        return False


def _begin(program: Program) -> list[str]:
    limits = ["--parent", str(os.getpid()), "--nice", str(program.nice)]
    if program.cpus:
        limits += ["--cpus", ",".join(map(str, sorted(program.cpus)))]
    return [sys.executable, "-m", "shoal_client.daemon", *limits, "--", *program.command]


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL; nothing where it has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def shares(cpus: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
    """CPUs for serve and for train: apart where there are two or more, else none is set."""
    if len(cpus) < 2:
        return frozenset(), frozenset()
    ordered = sorted(cpus)
    half = max(1, len(ordered) // 2)
    return frozenset(ordered[:half]), frozenset(ordered[half:])


def become(arguments: Sequence[str]) -> None:
    """Take the limits before `--`, then be the command behind it; returns where the parent is gone."""
    split = list(arguments).index("--")
    limits, command = arguments[:split], list(arguments[split + 1 :])
    stated = dict(zip(limits[::2], limits[1::2], strict=True))
    os.nice(int(stated["--nice"]))
    if "--cpus" in stated:
        os.sched_setaffinity(0, {int(cpu) for cpu in stated["--cpus"].split(",")})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(stated["--parent"]):
        os.execv(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1:])
