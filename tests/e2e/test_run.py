# SPDX-License-Identifier: Apache-2.0
"""`shoal client run` as it is deployed: two processes that survive each other, and end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from shoal_client.training.remote import ask
from shoal_simulations.control_plane import ApiServer, node

pytestmark = pytest.mark.e2e

SHOAL = [sys.executable, "-c", "from shoal_common.cli import main; main()", "client", "run"]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _until(condition, seconds=90.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def _children(parent: int) -> dict[str, int]:
    """Pids of the processes that a supervisor runs, by subcommand."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            ppid = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if ppid == parent and b"client" in words:
            found[words[words.index(b"client") + 1].decode()] = int(entry.name)
    return found


@pytest.fixture
def running(tmp_path):
    """The supervisor's process, a probe of each side, and the log."""
    port, log = _free_port(), (tmp_path / "log").open("wb")
    with ApiServer() as api:
        api.create("nodes", node("n1"))
        api.kubeconfig(tmp_path / "kubeconfig")
        options = ["--cluster", "one", "--data", str(tmp_path), "--no-privacy"]
        serve = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--listen", f"127.0.0.1:{port}"]
        process = subprocess.Popen([*SHOAL, *options, "--", *serve], stderr=log)

        def serves() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                    return answer.status == 200
            except OSError:
                return False

        def trains() -> bool:
            try:
                return ask(tmp_path / "trainer.sock", {"ask": "ping"}, silent_seconds=5) == b""
            except OSError:
                return False

        try:
            yield process, serves, trains
        finally:
            process.kill()
            process.wait()
            log.close()


def test_each_process_survives_the_other_and_both_end_with_sigterm(running):
    process, serves, trains = running
    _until(lambda: serves() and trains())
    first = _children(process.pid)
    assert first.keys() == {"serve", "train"}

    os.kill(first["train"], signal.SIGKILL)
    assert serves()
    _until(lambda: _children(process.pid).get("train", first["train"]) != first["train"] and trains())
    assert _children(process.pid)["serve"] == first["serve"]

    second = _children(process.pid)["train"]
    os.kill(first["serve"], signal.SIGKILL)
    assert trains()
    _until(lambda: _children(process.pid).get("serve", first["serve"]) != first["serve"] and serves())
    assert _children(process.pid)["train"] == second

    os.kill(second, signal.SIGSTOP)  # it hangs
    assert serves()
    last = _children(process.pid)
    process.terminate()
    assert process.wait(5) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in last.values())


def test_a_file_that_serve_cannot_use_ends_both_with_its_line_and_code_2(tmp_path):
    options = ["--cluster", "one", "--data", str(tmp_path / "data"), "--no-privacy", "--"]
    serve = ["--kubeconfig", str(tmp_path / "none"), "--listen", f"127.0.0.1:{_free_port()}"]
    command = [*SHOAL, *options, *serve]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"shoal: {tmp_path / 'none'}: credentials: there is no such file" in done.stderr
    assert "starting it again" not in done.stderr
