# SPDX-License-Identifier: Apache-2.0
"""Two real processes under the supervisor: ends, hangs and kills of one never touch the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal_client import daemon
from shoal_client.commands.run import programs, serves
from shoal_client.daemon import Program, Supervisor, shares

STAY = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    print(os.getpid(), file=file)
time.sleep(99)
"""
LIMITS = """
import os, sys
with open(sys.argv[1], "w") as file:
    print(os.nice(0), os.sched_getaffinity(0), file=file)
"""
SUPERVISOR = """
import sys, time
from shoal_client.daemon import Program, Supervisor
Supervisor([Program("one", [sys.executable, "-c", sys.argv[1], sys.argv[2]])]).start()
time.sleep(99)
"""


def _until(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def _program(folder: Path, name: str, code: str = STAY, **options) -> Program:
    return Program(name, [sys.executable, "-c", code, str(folder / name)], **options)


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def quick(monkeypatch):
    """A supervisor that looks and starts again sooner."""
    for name, value in (("FIRST_PAUSE", 0.05), ("PROBE_SECONDS", 0.05), ("START_SECONDS", 0.0)):
        monkeypatch.setattr(daemon, name, value)


def test_a_killed_process_starts_again_and_the_other_goes_on(tmp_path, quick):
    supervisor = Supervisor([_program(tmp_path, "one"), _program(tmp_path, "two")])
    supervisor.start()
    try:
        _until(lambda: _pids(tmp_path / "one") and _pids(tmp_path / "two"))
        os.kill(_pids(tmp_path / "one")[0], signal.SIGKILL)
        _until(lambda: len(_pids(tmp_path / "one")) == 2)
        assert len(_pids(tmp_path / "two")) == 1
        assert _alive(_pids(tmp_path / "two")[0])
    finally:
        supervisor.stop()
    assert not any(_alive(pid) for name in ("one", "two") for pid in _pids(tmp_path / name))


def test_a_process_that_hangs_is_killed_and_started_again(tmp_path, quick):
    def answers():
        if len(_pids(tmp_path / "one")) < 2:
            raise TimeoutError
        return True

    supervisor = Supervisor([_program(tmp_path, "one", probe=answers), _program(tmp_path, "two")])
    supervisor.start()
    try:
        _until(lambda: len(_pids(tmp_path / "one")) == 2)
        assert not _alive(_pids(tmp_path / "one")[0])
        assert len(_pids(tmp_path / "two")) <= 1
    finally:
        supervisor.stop()


def test_a_process_deaf_to_sigterm_is_ended_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "END_SECONDS", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAY
    supervisor = Supervisor([_program(tmp_path, "one", deaf)])
    supervisor.start()
    _until(lambda: _pids(tmp_path / "one"))
    supervisor.stop()
    assert not _alive(_pids(tmp_path / "one")[0])


def test_the_processes_end_with_a_supervisor_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", SUPERVISOR, STAY, str(tmp_path / "one")])
    _until(lambda: _pids(tmp_path / "one"))
    parent.kill()
    parent.wait()
    _until(lambda: not _alive(_pids(tmp_path / "one")[0]))


def test_a_command_that_is_not_there_is_tried_again_and_ends_with_the_rest(quick):
    supervisor = Supervisor([Program("none", ["/no/such/program"])])
    supervisor.start()
    supervisor.stop()


def test_a_process_whose_input_is_wrong_ends_all_with_its_exit_code(tmp_path):
    supervisor = Supervisor([_program(tmp_path, "one", "raise SystemExit(2)"), _program(tmp_path, "two")])
    supervisor.start()
    assert supervisor.wait() == 2
    supervisor.stop()
    assert not any(_alive(pid) for pid in _pids(tmp_path / "two"))


def test_told_to_end_it_ends_well(tmp_path):
    supervisor = Supervisor([_program(tmp_path, "one")])
    supervisor.start()
    supervisor.end()
    assert supervisor.wait() == 0
    supervisor.stop()


def test_limits_are_those_of_the_process(tmp_path):
    cpu = min(os.sched_getaffinity(0))
    supervisor = Supervisor([_program(tmp_path, "one", LIMITS, nice=7, cpus=frozenset({cpu}))])
    supervisor.start()
    _until(lambda: (tmp_path / "one").exists() and (tmp_path / "one").read_text())
    supervisor.stop()
    assert (tmp_path / "one").read_text() == f"{min(19, os.nice(0) + 7)} {{{cpu}}}\n"


def test_cpus_are_shared_where_there_are_two():
    assert shares(frozenset({3})) == (frozenset(), frozenset())
    assert shares(frozenset({4, 1})) == ({1}, {4})
    assert shares(frozenset(range(5))) == ({0, 1}, {2, 3, 4})


def test_serve_gets_its_options_and_the_store_and_train_its_budget(tmp_path):
    serve, train = programs(tmp_path, ["--listen", "127.0.0.1:0"], ["--cluster", "one"], 5)
    own = ["--store", str(tmp_path / "experience"), "--training", str(tmp_path / "training")]
    assert serve.command[3:] == ["client", "serve", *own, "--listen", "127.0.0.1:0"]
    assert train.command[3:] == ["client", "train", "--cluster", "one"]
    assert (serve.nice, train.nice) == (0, 5)
    assert not serve.cpus & train.cpus


def test_the_probe_goes_where_serve_listens(live_port):
    port = live_port
    assert serves(["--listen", f"0.0.0.0:{port}"])()
    assert serves([f"--listen=127.0.0.1:{port}", "--tls-cert", "x"])()
    assert serves(["--listen", "127.0.0.1:1", "--metrics-listen", f"127.0.0.1:{port}"])()
    with pytest.raises(OSError, match="refused"):
        serves(["--listen", "127.0.0.1:1"])()


@pytest.fixture
def live_port():
    """The port of an HTTP server that answers /livez."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Lives(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Lives) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
