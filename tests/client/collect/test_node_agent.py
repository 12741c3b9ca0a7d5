# SPDX-License-Identifier: Apache-2.0
"""`shoal client agent` and its manifests: nothing runs unasked, two capabilities and no more."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import urllib3
import yaml
from typer.testing import CliRunner

from shoal_client.commands.client import app
from shoal_common.errors import InputError

ROOT = Path(__file__).parents[3]
DAEMONSET = ROOT / "deploy" / "node-agent" / "daemonset.yaml"


def pod_spec() -> dict:
    documents = list(yaml.safe_load_all(DAEMONSET.read_text()))
    return next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]


def test_the_agent_may_do_what_ebpf_needs_and_nothing_else() -> None:
    spec = pod_spec()
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["BPF", "PERFMON"]}
    assert context["privileged"] is context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()
    assert [v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v] == ["/sys/kernel/tracing"]
    assert all(m["readOnly"] for m in container["volumeMounts"] if m["name"] == "tracing")


def test_the_manifest_calls_the_command_as_it_is() -> None:
    arguments = pod_spec()["containers"][0]["args"]
    assert arguments[:2] == ["client", "agent"]
    command = typer.main.get_command(app).commands["agent"]
    context = command.make_context("agent", arguments[2:])
    assert context.params["listen"] == "0.0.0.0:9797"
    assert list(context.params["probe"]) == ["run_queue", "block_io", "tcp"]


def test_without_a_probe_nothing_runs() -> None:
    shoal = Path(sys.executable).with_name("shoal")
    command = [shoal, "client", "agent", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        told = json.loads(process.stdout.readline())
        text = urllib3.request("GET", told["metrics"], timeout=5.0, retries=False).data.decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == 0
    assert told["probes"] == []
    assert [line for line in text.splitlines() if not line.startswith("#")] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--listen", "9797"], "--listen"),
        (["--listen", "a:99999"], "--listen"),
        (["--probe", "all"], "--probe"),
    ],
)
def test_wrong_input_is_named(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["agent", *arguments])
    assert isinstance(result.exception, InputError)
    assert result.exception.field == named


def test_an_address_that_is_taken_is_told() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(app, ["agent", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert isinstance(result.exception, InputError)
    assert result.exception.field == "--listen"
