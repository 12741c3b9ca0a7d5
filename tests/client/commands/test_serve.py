# SPDX-License-Identifier: Apache-2.0
"""`shoal client serve`: wrong options in one line, and a whole process against the emulated API."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal_common.cli import main
from shoal_common.policy import PolicyArtifact
from shoal_simulations.control_plane import ApiServer, Configuration, Scheduler, node, pod, read_configuration

STANZA = Path(__file__).parents[3] / "deploy" / "kube-scheduler" / "extender.yaml"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "here"], "--listen: 'here': is not HOST:PORT"),
        (["--listen", "127.0.0.1:1", "--metrics-listen", "x:y"], "--metrics-listen: 'x:y': is not HOST:PORT"),
        (["--tls-cert", "a.crt"], "--tls-cert: stands alone"),
        (["--client-ca", "ca.crt"], "--client-ca: needs HTTPS"),
        (["--kubeconfig", "/nowhere/config"], "credentials"),
        (["--webhook-listen", ":9443", "--webhook-cert", "c", "--webhook-key", "k"], "without --actuate"),
        (["--mig-config-map", "a/b"], "--mig-config-map: is of no use without --actuate"),
        (["--actuate", "--mig-config-map", "b"], "'b' is not NAMESPACE/NAME"),
        (["--mode", "loud"], "'loud' is not one of"),
    ],
)
def test_wrong_options_are_told_in_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["client", "serve", *options])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@contextmanager
def running(folder: Path, api: ApiServer, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    code = "from shoal_common.cli import main; main()"
    command = [
        sys.executable, "-c", code, "client", "serve", "--listen", "127.0.0.1:0",
        "--kubeconfig", str(api.kubeconfig(folder / "kubeconfig")), *options,
    ]  # fmt: skip
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            command, stderr=log, stdout=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            yield process, ready(process, folder / "log")
        finally:
            process.kill()
            process.wait(10)


def ready(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"listening on \S+:(\d+)", log.read_text())
        if found and get(int(found[1]), "readyz").startswith("ok"):
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.e2e
def test_it_serves_a_scheduler_and_ends_within_five_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from shoal_common.nn.set_attention import SetActor

    torch.manual_seed(0)
    artifact = PolicyArtifact.save(tmp_path / "artifact", SetActor(16), {"test": True}).directory
    store = tmp_path / "store"
    with ApiServer() as api:
        for i in range(6):
            api.create("nodes", node(f"n{i}", cpu=4 + 4 * i))
        options = ("--policy", str(artifact), "--mode", "active", "--store", str(store))
        with running(tmp_path, api, *options) as (process, port):
            stanza = tmp_path / "stanza.yaml"
            stanza.write_text(STANZA.read_text().replace("127.0.0.1:8888", f"127.0.0.1:{port}"))
            configuration: Configuration = read_configuration(stanza)
            with Scheduler(api.url, configuration) as scheduler:
                for i in range(5):
                    api.create("pods", pod(f"p{i}"))
                names = [f"p{i}" for i in range(5)]
                api.wait(lambda: all(api.get("pods", n)["spec"].get("nodeName") for n in names))
                attempts = [a for a in scheduler.attempts if a.node]
            assert len(attempts) == 5
            assert not any(a.ignored for a in attempts)
            assert all(max(a.totals.values()) >= 1500 for a in attempts)
            page = get(port, "metrics")
            assert 'shoal_decisions_total{mode="active",source="policy"} 5.0' in page
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            assert time.monotonic() - begin < 5
    exported = tmp_path / "out.parquet"
    with pytest.raises(SystemExit) as caught:
        main(["client", "export", "--store", str(store), "--out", str(exported), "--json"])
    assert caught.value.code == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5


def test_the_gated_are_let_go_when_it_ends(tmp_path: Path) -> None:
    """A member of a gang waits for the other one; whoever put it on hold takes it off hold before it ends."""
    labels, size = {"shoal.dev/gang": "g"}, {"shoal.dev/gang-size": "2"}
    with ApiServer() as api:
        api.create("nodes", node("n1"))
        with running(tmp_path, api, "--actuate") as (process, port):
            assert api.wait(lambda: "shoal_leader 1.0" in get(port, "metrics"), 30)
            api.create("pods", pod("p", gates=["shoal.dev/placement"], labels=labels, annotations=size))
            assert api.wait(lambda: "shoal_gated_pods 1.0" in get(port, "metrics"), 30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        assert "schedulingGates" not in api.get("pods", "p")["spec"]
        assert not api.objects("leases")[0]["spec"]["holderIdentity"]


def test_what_degrades_serving_is_told_to_the_operator(tmp_path: Path) -> None:
    from shoal_client.serve.server import Address
    from shoal_client.serving import ServeSettings, ServingProcess

    with ApiServer() as api:
        config = api.kubeconfig(tmp_path / "kubeconfig")
        process = ServingProcess(ServeSettings(Address("127.0.0.1", 0), config))
        assert process.serving().error == "no policy artifact is given"
        assert process.serving().degraded == "the watch caches are not full yet"
        process.start()
        api.wait(lambda: not process.ready())
        assert process.serving().degraded == ""
        for _ in range(5):
            process.breaker.failed()
        assert process.serving().degraded == "the circuit breaker is open"
        process.live.staleness_seconds = lambda kind: 61.4  # type: ignore[method-assign]
        assert process.serving().degraded == "nothing was heard of nodes or pods for 61 s"
        process.stop()


def test_it_ends_on_sigterm_while_it_still_starts(tmp_path: Path) -> None:
    """A credential plugin that never answers holds the start up."""
    asked = tmp_path / "asked"
    script = f"touch {asked}; exec sleep 60"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [cluster],
        "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    code = (
        "from shoal_client.commands import serve; from shoal_common.cli import main;"
        "serve.LAST_SECONDS = 0.2; main()"
    )
    command = [sys.executable, "-c", code, "client", "serve", "--kubeconfig", str(tmp_path / "kubeconfig")]
    with (tmp_path / "log").open("w+b") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not asked.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1, (tmp_path / "log").read_text()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
