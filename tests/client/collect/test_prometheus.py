# SPDX-License-Identifier: Apache-2.0
"""The client of Prometheus' API: what it makes of errors, wrong answers and addresses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from shoal_client.collect.prometheus import PrometheusClient
from shoal_common.errors import Fatal, InputError, Transient


class Odd(BaseHTTPRequestHandler):
    """A server that answers with what its class says and remembers the request's headers."""

    status, body, wait = 200, b"{}", 0.0
    seen: dict[str, str]

    def do_POST(self) -> None:
        type(self).seen = dict(self.headers)
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.wait)
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[type[Odd], str]]:
    handler = type("Handler", (Odd,), {})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.handle_error = lambda *_: None  # a client that does not wait any longer
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield handler, f"127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_instant_and_range_queries_of_a_real_server(site) -> None:
    (series,) = site.client.instant('node_load1{nodename="",instance=~"127.0.0.2:.*"}')
    assert series.number == 2.4
    end = site.client.server_time()
    (ranged,) = site.client.range('node_load1{instance=~"127.0.0.2:.*"}', end - 2, end, 1)
    assert ranged.last() == (pytest.approx(end, abs=1.01), 2.4)


def test_a_query_that_is_refused_is_fatal(site) -> None:
    with pytest.raises(Fatal, match="parse error"):
        site.client.instant("sum by (")


def test_a_server_that_is_away_is_transient() -> None:
    with pytest.raises(Transient):
        PrometheusClient("http://127.0.0.1:9").instant("up")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>log in</html>"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":7}}'),
        (200, b'{"status":"error","error":"no"}'),
        (302, b"{}"),
        (401, b'{"status":"error","error":"who are you?"}'),
        (503, b'{"status":"error","errorType":"timeout","error":"query timed out"}'),
        (502, b"Bad gateway"),
    ],
)
def test_wrong_answers_are_transient(server, status: int, body: bytes) -> None:
    handler, address = server
    handler.status, handler.body = status, body
    with pytest.raises(Transient):
        PrometheusClient(f"http://{address}").instant("up")


def test_a_server_that_hangs_is_given_up(server) -> None:
    handler, address = server
    handler.wait = 1.0
    with pytest.raises(Transient):
        PrometheusClient(f"http://{address}", read_seconds=0.2).instant("up")


def test_credentials_are_sent_and_not_told(server, tmp_path) -> None:
    handler, address = server
    handler.body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    PrometheusClient(f"http://reader:secret@{address}/prometheus/").instant("up")
    assert handler.seen["authorization"].startswith("Basic ")
    token = tmp_path / "token"
    client = PrometheusClient(f"http://{address}", token_file=token)
    for value in ("one", "two"):  # read again for each request
        token.write_text(f"{value}\n")
        client.instant("up")
        assert handler.seen["Authorization"] == f"Bearer {value}"
    with pytest.raises(Transient) as error:
        PrometheusClient("http://reader:secret@127.0.0.1:9").instant("up")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://prometheus", "", "http://", "http://x:99999/"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(InputError, match="no address of a Prometheus"):
        PrometheusClient(url)
