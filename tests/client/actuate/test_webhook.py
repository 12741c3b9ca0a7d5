# SPDX-License-Identifier: Apache-2.0
"""The webhook's answers, and the server over real TLS."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal_client.actuate.webhook import GATE, WebhookServer, WebhookSettings, answer
from shoal_client.serve.server import Address, Tls
from shoal_simulations.control_plane.builders import pod
from shoal_simulations.control_plane.patches import json_patch

OPTED_IN = {"shoal.dev/placement": "enabled"}


def review(content: Any, namespace: str = "default", operation: str = "CREATE") -> dict[str, Any]:
    request = {"uid": "u-1", "kind": {"kind": "Pod"}, "operation": operation, "namespace": namespace}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, "object": content},
    }


def gated(content: dict[str, Any], **request: Any) -> bool:
    """Whether the answer puts our gate on, once and as the last one."""
    response = answer(review(content, **request), lambda namespace, pod: True, "shoal")["response"]
    assert response["uid"] == "u-1"
    assert response["allowed"] is True
    if "patch" not in response:
        return False
    after: Any = json_patch(content, json.loads(base64.b64decode(response["patch"])))
    before = content["spec"].get("schedulingGates", [])
    assert after["spec"]["schedulingGates"] == [*before, {"name": GATE}]
    return True


def test_an_opted_in_pod_gets_the_gate_behind_those_it_has() -> None:
    assert gated(pod("p", labels=OPTED_IN))
    assert gated(pod("p", labels=OPTED_IN, gates=["other/gate"]))


@pytest.mark.parametrize(
    "content",
    [
        pod("p"),
        pod("p", labels={"shoal.dev/placement": "no"}),
        pod("p", labels=OPTED_IN, node_name="n"),
        pod("p", labels=OPTED_IN, gates=[GATE]),
        pod("p", labels=OPTED_IN, owner={"kind": "DaemonSet", "name": "d"}),
        pod("p", labels=OPTED_IN, owner={"kind": "Node", "name": "n"}),
    ],
)
def test_others_do_not(content: dict[str, Any]) -> None:
    assert not gated(content)


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "shoal"])
def test_case_61_own_and_system_namespaces_are_left_out_even_if_the_configuration_is_widened(
    namespace: str,
) -> None:
    assert not gated(pod("p", labels=OPTED_IN), namespace=namespace)


def test_only_creations() -> None:
    assert not gated(pod("p", labels=OPTED_IN), operation="UPDATE")


@pytest.mark.parametrize("content", [None, [], {}, {"metadata": {}}, {"metadata": None, "spec": 3}, "x"])
def test_whatever_it_cannot_read_is_allowed(content: Any) -> None:
    response = answer(review(content), lambda namespace, pod: True, "shoal")["response"]
    assert response == {"uid": "u-1", "allowed": True}
    assert answer({"request": content}, lambda namespace, pod: True, "shoal")["response"]["allowed"]


def test_a_fault_of_ours_is_allowed() -> None:
    def broken(namespace: str, content: object) -> bool:
        raise RuntimeError

    response = answer(review(pod("p", labels=OPTED_IN)), broken, "shoal")["response"]
    assert response == {"uid": "u-1", "allowed": True}


def certify(folder: Path, name: str) -> Path:
    """Write a self-signed certificate for 127.0.0.1 and its key; return the certificate's path."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return folder / "tls.crt"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebhookServer]:
    certificate = certify(tmp_path, "first")
    settings = WebhookSettings(Address("127.0.0.1", 0), Tls(certificate, tmp_path / "tls.key"), "shoal")
    server = WebhookServer(settings, lambda namespace, content: True)
    server.start()
    yield server
    server.stop()


def post(server: WebhookServer, trusted: Path, body: bytes, path: str = "/mutate") -> tuple[int, bytes, str]:
    context = ssl.create_default_context(cafile=str(trusted))
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=5, context=context)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert isinstance(connection.sock, ssl.SSLSocket)
    subject = dict(pair[0] for pair in connection.sock.getpeercert()["subject"])  # type: ignore[index,misc]
    content = response.read()
    connection.close()
    return response.status, content, subject["commonName"]


def test_over_tls(server: WebhookServer, tmp_path: Path) -> None:
    body = json.dumps(review(pod("p", labels=OPTED_IN))).encode()
    status, content, _ = post(server, tmp_path / "tls.crt", body)
    assert status == 200
    assert json.loads(content)["response"]["patchType"] == "JSONPatch"
    for wrong, code in ((b"{", 400), (b"[]", 400), (b'{"kind": "Pod"}', 400), (b" " * (5 * 2**20), 413)):
        assert post(server, tmp_path / "tls.crt", wrong)[0] == code
    assert post(server, tmp_path / "tls.crt", b"", "/other")[0] == 404


def test_a_renewed_certificate_is_shown_without_a_restart(server: WebhookServer, tmp_path: Path) -> None:
    assert not server.renew_certificate()
    certificate = certify(tmp_path, "second")
    assert server.renew_certificate()
    assert post(server, certificate, b"{}")[2] == "second"
    (tmp_path / "tls.key").write_text("half")
    assert not server.renew_certificate()
    assert post(server, certificate, b"{}")[2] == "second"
