# SPDX-License-Identifier: Apache-2.0
"""The extender over real HTTP: verbs, probes, metrics, TLS, and what a real kube-scheduler sent."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal_client.metrics import EXTENDER_WHOLE_NODES, FALLBACKS
from shoal_client.serve.extender import Application, Extender
from shoal_client.serve.payloads import Binding
from shoal_client.serve.server import Address, HttpServer, Tls
from shoal_client.serve.service import allowed_victims
from shoal_common.errors import InputError
from shoal_simulations.control_plane.builders import node, pod

from .conftest import World, body, some_nodes

RECORDED = Path(os.environ.get("SHOAL_DATA", "/nowhere")).parent / "payloads"
PAYLOADS = sorted(RECORDED.glob("*.json"))
HERE = Address("127.0.0.1", 0)


class Served:
    """A world behind a port."""

    def __init__(self, world: World, tls: Tls | None = None) -> None:
        self.world, self.bound, self.problem = world, [], ""  # type: ignore[var-annotated]

        def bind(wanted: Binding) -> str:
            self.bound.append(wanted.node)
            return ""

        known = world.live.pods
        extender = Extender(
            world.service, bind, lambda asked: allowed_victims(asked, known.__contains__, refuse=False)
        )
        self.server = HttpServer(Application(extender, lambda: self.problem), HERE, tls)
        self.server.start()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)

    def ask(self, method: str, path: str, content: bytes = b"") -> tuple[int, bytes]:
        self.connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def post(self, verb: str, content: bytes) -> Any:
        code, text = self.ask("POST", f"/{verb}", content)
        assert code == 200, text
        return json.loads(text)

    def stop(self) -> None:
        self.connection.close()
        self.server.stop()
        self.world.service.stop()


@pytest.fixture
def served(world: World) -> Iterator[Served]:
    made = Served(world)
    yield made
    made.stop()


@pytest.mark.skipif(not PAYLOADS, reason="no recorded payloads beside SHOAL_DATA")
def test_everything_that_a_real_scheduler_sent_is_answered(artifact: Path) -> None:
    world = World(artifact).nodes(*(node(f"node-{i:05d}", cpu=16 + i % 5) for i in range(20)))
    served = Served(world)
    for path in PAYLOADS:
        document = json.loads(path.read_text())
        verb, request = path.stem.rpartition("__")[2].split("-")[0], document["request"]
        answer = served.post(f"any/prefix/{verb}", json.dumps(request).encode())
        if verb == "prioritize":
            names = request["NodeNames"] or [n["metadata"]["name"] for n in request["Nodes"]["items"]]
            assert [row["Host"] for row in answer] == names
            assert all(type(row["Score"]) is int for row in answer)
        elif verb == "filter":
            assert answer["Error"] == ""
            assert (answer["Nodes"] is None) is (request["Nodes"] is None)
            assert (answer["NodeNames"] is None) is (request["NodeNames"] is None)
        elif verb == "bind":
            assert answer == {"Error": ""}
            assert served.bound[-1] == request["Node"]
        else:
            assert answer == {"NodeNameToMetaVictims": {}}  # the victims are no pods of this cluster
    served.stop()


def test_case_2_whole_nodes_are_counted_and_answered_alike(served: Served) -> None:
    world, before = served.world, EXTENDER_WHOLE_NODES._value.get()
    obj, nodes = world.stamped(pod("p", cpu=2)), some_nodes()
    by_name = served.post("prioritize", body(obj, [n["metadata"]["name"] for n in nodes]))
    whole = json.dumps({"Pod": obj, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}).encode()
    assert served.post("prioritize", whole) == by_name
    kept = served.post("filter", whole)
    assert kept["Nodes"]["items"] == nodes
    assert EXTENDER_WHOLE_NODES._value.get() == before + 2


def test_neither_nodes_nor_names_is_an_error_never_an_empty_success(served: Served) -> None:
    nothing = json.dumps({"Pod": served.world.stamped(pod("p")), "Nodes": None, "NodeNames": None}).encode()
    assert "is null and so is Nodes" in served.post("filter", nothing)["Error"]
    code, text = served.ask("POST", "/prioritize", nothing)
    assert (code, "is null" in json.loads(text)["Error"]) == (400, True)
    assert served.post("bind", b'{"PodName":"p"}')["Error"]
    assert served.ask("POST", "/preempt", b"[]")[0] == 400
    assert served.post("prioritize", body(served.world.stamped(pod("p")), [])) == []


def test_case_13_an_error_inside_is_a_neutral_answer_with_a_metric(served: Served) -> None:
    before = FALLBACKS.labels("error")._value.get()
    served.world.live.apps = None  # type: ignore[assignment]
    served.world.live.insufficient = None  # type: ignore[assignment, method-assign]
    request = body(served.world.stamped(pod("p")), ["n0", "n1"])
    assert served.post("prioritize", request) == [{"Host": "n0", "Score": 0}, {"Host": "n1", "Score": 0}]
    assert served.post("filter", request)["NodeNames"] == ["n0", "n1"]
    assert FALLBACKS.labels("error")._value.get() == before + 2
    served.world.policy(mode="Active", fallback={"onError": "FailClosed", "timeoutMs": 5000})
    assert "(error) and the policy fails closed" in served.post("filter", request)["Error"]
    assert served.post("prioritize", request)[0]["Score"] == 0


def test_probes_metrics_and_what_is_not_there(served: Served) -> None:
    assert served.ask("GET", "/livez") == (200, b"ok\n")
    assert served.ask("GET", "/readyz") == (200, b"ok\n")
    served.problem = "the watch caches are not full yet"
    assert served.ask("GET", "/readyz") == (503, b"not ready: the watch caches are not full yet\n")
    assert served.ask("GET", "/livez")[0] == 200
    code, text = served.ask("GET", "/metrics")
    assert code == 200
    assert b"shoal_extender_requests_total" in text
    for method, path in (("GET", "/"), ("GET", "/prioritize"), ("POST", "/metrics"), ("PUT", "/filter")):
        assert served.ask(method, path)[0] == 404


def test_the_second_address_answers_no_verb(world: World) -> None:
    server = HttpServer(Application(None, lambda: ""), HERE)
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    codes = []
    for method, path in (("GET", "/metrics"), ("GET", "/readyz"), ("POST", "/prioritize")):
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        codes.append(answer.status)
    connection.close()
    server.stop()
    assert codes == [200, 200, 404]


def test_an_address_in_use_is_said_in_one_line() -> None:
    first = HttpServer(Application(None, lambda: ""), HERE)
    first.start()
    with pytest.raises(InputError, match="Address already in use"):
        HttpServer(Application(None, lambda: ""), Address("127.0.0.1", first.port))
    first.stop()
    for wrong in ("8888", "host:", "host:99999", "host:x"):
        with pytest.raises(InputError, match="is not HOST:PORT"):
            Address.parse(wrong, "--listen")
    assert Address.parse("[::1]:80", "--listen") == Address("::1", 80)


def test_only_clients_with_a_certificate_are_served_and_ours_is_renewed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_client.serve.server.RENEW_SECONDS", 0.02)
    (tmp_path / "renewed").mkdir()
    make_certificates(tmp_path)
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
    served = Served(world, tls)
    known, unknown = (ssl.create_default_context(cafile=str(tmp_path / "ca.crt")) for _ in range(2))
    known.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    port = served.server.port
    served.connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=known)
    assert len(served.post("prioritize", body(world.stamped(pod("p")), ["n0", "n1"]))) == 2
    stranger = http.client.HTTPSConnection("localhost", port, timeout=10, context=unknown)

    def ask() -> None:
        stranger.request("GET", "/livez")
        stranger.getresponse()

    with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|broken pipe|eof"):
        ask()
    stranger.close()
    make_certificates(tmp_path / "renewed")
    for name in ("server.crt", "server.key"):
        os.replace(tmp_path / "renewed" / name, tmp_path / name)
    renewed = ssl.create_default_context(cafile=str(tmp_path / "renewed" / "ca.crt"))
    renewed.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    later = http.client.HTTPSConnection("localhost", port, timeout=10, context=renewed)
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        try:
            later.request("GET", "/livez")
            break
        except ssl.SSLCertVerificationError:  # still the first one
            later.close()
            time.sleep(0.02)
    assert later.getresponse().status == 200
    later.close()
    served.stop()
    with pytest.raises(InputError, match="No such file"):
        HttpServer(Application(None, lambda: ""), HERE, Tls(tmp_path / "none", tmp_path / "none"))


def make_certificates(folder: Path) -> None:
    """A CA, and certificates of it for localhost and for a client, by the openssl command."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, timeout=30)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "2")
    (folder / "san").write_text("subjectAltName=DNS:localhost\n")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.crt", "-days", "2", "-extfile", "san",
        )  # fmt: skip


def test_case_45_one_process_has_no_gauges_of_dead_ones(tmp_path: Path) -> None:
    code = (
        "from prometheus_client import generate_latest\n"
        "from shoal_client import metrics\n"
        "metrics.DRIFT_INDEX.set(0.5)\n"
        "print(generate_latest(metrics.REGISTRY).decode())"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    pages = [
        subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout
        for _ in range(2)
    ]
    for page in pages:
        assert "\nshoal_drift_index 0.5\n" in page
        assert "pid=" not in page
