# SPDX-License-Identifier: Apache-2.0
"""The extender's benchmark measures what it says; its proxy delays, its limits limit."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import time
from pathlib import Path

import pytest

from shoal_common.cli import main
from shoal_simulations.benchmarks import extender
from shoal_simulations.benchmarks.extender import _ask, request_template
from shoal_simulations.benchmarks.extender_sensitivity import delayed


class Handler(http.server.BaseHTTPRequestHandler):
    """Remembers what it was sent."""

    protocol_version = "HTTP/1.1"
    seen: list[dict[str, object]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Handler.seen = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_requests_name_every_node_and_a_pod_in_a_new_version(port: int, tmp_path: Path) -> None:
    took = _ask(port, request_template(tmp_path, 7), 2, 1)
    assert took.requests == len(Handler.seen) > 10
    assert took.failed == 0
    assert 0 < took.p50 <= took.p99 <= took.max
    assert all(len(asked["NodeNames"]) == 7 for asked in Handler.seen)  # type: ignore[arg-type]
    pods = [asked["Pod"]["metadata"] for asked in Handler.seen]  # type: ignore[index]
    assert len({p["resourceVersion"] for p in pods}) == len(pods)
    assert len({p["uid"] for p in pods}) == min(len(pods), extender.PODS)


def test_the_proxy_delays_answers(port: int) -> None:
    with delayed(port, 0.2) as late:
        connection = http.client.HTTPConnection("127.0.0.1", late, timeout=5)
        begin = time.monotonic()
        connection.request("POST", "/prioritize", b"{}")
        assert connection.getresponse().read() == b"[]"
        assert time.monotonic() - begin >= 0.2
        connection.close()


@pytest.mark.e2e
def test_the_quick_form_gives_the_three_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extender, "QUICK_SECONDS", 2)
    monkeypatch.setattr(extender, "WARM_SECONDS", 1)
    with pytest.raises(SystemExit) as caught:
        main(["bench", "extender", "--nodes", "30", "--quick", "--json"])
    assert caught.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["requests_per_second"] > 0
    assert found["sizes"][0]["failed"] == 0


def test_options_of_the_extender_mean_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "engine", "--nodes", "3"])
    assert caught.value.code == 2
    assert "--nodes: means nothing to engine" in capsys.readouterr().err
