# SPDX-License-Identifier: Apache-2.0
"""`shoal client serve`: answer kube-scheduler, and record what becomes of it. Ends on SIGTERM or Ctrl-C."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal_common.errors import InputError

if TYPE_CHECKING:
    from shoal_client.serve.server import Tls

EPILOG = """Examples:

  shoal client serve --kubeconfig ~/.kube/config --policy runs/demo/policy --listen 127.0.0.1:8888

  shoal client serve --kubeconfig K --policy P --listen 127.0.0.1:8888 --prometheus http://prometheus:9090
  --store /var/lib/shoal/experience

  shoal client serve --policy P --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
  --metrics-listen 0.0.0.0:9090"""


LAST_SECONDS = 4.5


class DefaultMode(StrEnum):
    """The mode while the cluster has no SchedulingPolicy at all."""

    OFF = "off"
    SHADOW = "shadow"
    ACTIVE = "active"


def serve(
    listen: Annotated[str, typer.Option(help="Address of the extender, HOST:PORT.")] = "127.0.0.1:8888",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: in-cluster credentials, else $KUBECONFIG.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Directory of the policy artifact; read again when it changes.")
    ] = None,
    prometheus: Annotated[str, typer.Option(help="URL of a Prometheus server.")] = "",
    prometheus_token: Annotated[
        Path | None, typer.Option(help="File with a bearer token for it, read for each request.")
    ] = None,
    prometheus_ca: Annotated[Path | None, typer.Option(help="CA certificates it is verified by.")] = None,
    store: Annotated[Path | None, typer.Option(help="Directory of the experience store.")] = None,
    training: Annotated[
        Path | None,
        typer.Option(help="The trainer's directory: its ledger is reported, limits are put there."),
    ] = None,
    mode: Annotated[
        DefaultMode, typer.Option(help="Mode while the cluster has no SchedulingPolicy.")
    ] = DefaultMode.SHADOW,
    off: Annotated[
        bool, typer.Option("--off", envvar="SHOAL_OFF", help="Kill switch: every policy counts as Off.")
    ] = False,
    metrics_listen: Annotated[
        str, typer.Option(help="A second address for /metrics, /livez and /readyz, without TLS.")
    ] = "",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the extender: HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Serve only clients with a certificate of this CA.")
    ] = None,
    grpc_socket: Annotated[Path | None, typer.Option(help="Unix socket of the gRPC scorer.")] = None,
    namespace: Annotated[
        str,
        typer.Option(
            help="Shoal's own namespace (default: where it runs): for its lease; its pods are never masked."
        ),
    ] = "",
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Let preemptVerb go on where every victim is a known pod.")
    ] = False,
    actuate: Annotated[
        bool, typer.Option("--actuate", help="Carry out the actions that SchedulingPolicies allow.")
    ] = False,
    webhook_listen: Annotated[
        str, typer.Option(help="With --actuate: address of the mutating webhook, HTTPS only.")
    ] = "",
    webhook_cert: Annotated[
        Path | None, typer.Option(help="Its certificate; read again when it changes.")
    ] = None,
    webhook_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    mig_config_map: Annotated[
        str, typer.Option(help="With --actuate: NAMESPACE/NAME of mig-parted's ConfigMap.")
    ] = "",
) -> None:
    """Answer kube-scheduler's extender calls from this cluster's own watch.

    Without a SchedulingPolicy, and without --mode active, every answer is neutral: decisions are made and
    recorded, and kube-scheduler's own scores stand.
    """
    import logging
    import os
    import signal
    import sys
    import threading

    from shoal_client.policies.spec import Mode
    from shoal_client.serve.heap import keep_pages
    from shoal_client.serve.server import Address
    from shoal_client.serving import ServeSettings, ServingProcess

    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel("WARNING")
    _check_actuation(actuate, webhook_listen, mig_config_map)
    settings = ServeSettings(
        listen=Address.parse(listen, "--listen"),
        kubeconfig=kubeconfig,
        policy=policy,
        prometheus=prometheus,
        prometheus_token=prometheus_token,
        prometheus_ca=prometheus_ca,
        mode=Mode(mode.value.capitalize()),
        killed=off,
        metrics_listen=Address.parse(metrics_listen, "--metrics-listen") if metrics_listen else None,
        tls=_tls(tls_cert, tls_key, client_ca),
        grpc_socket=grpc_socket,
        store=store,
        training=training,
        namespace=namespace,
        preempt=preempt,
        actuate=actuate,
        webhook_listen=Address.parse(webhook_listen, "--webhook-listen") if webhook_listen else None,
        webhook_tls=_webhook_tls(webhook_listen, webhook_cert, webhook_key),
        mig_config_map=mig_config_map,
    )
    sys.setswitchinterval(0.0005)  # a request must not wait 5 ms while another thread reads an event
    keep_pages()
    stop = threading.Event()
    last = threading.Timer(LAST_SECONDS, os._exit, (1,))  # whatever hangs must not hold up the end
    last.daemon = True

    def end(*_: object) -> None:
        if not stop.is_set():
            stop.set()
            last.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    process = ServingProcess(settings)
    process.start()
    typer.echo(
        f"listening on {settings.listen.host}:{process.port}, policies {mode.value} by default", err=True
    )
    stop.wait()
    process.stop()


def _check_actuation(actuate: bool, webhook_listen: str, mig_config_map: str) -> None:
    for option, value in (("--webhook-listen", webhook_listen), ("--mig-config-map", mig_config_map)):
        if value and not actuate:
            raise InputError("shoal client serve", option, "is of no use without --actuate", "give both")
    namespace, _, name = mig_config_map.partition("/")
    if mig_config_map and (not namespace or not name or "/" in name):
        problem = f"{mig_config_map!r} is not NAMESPACE/NAME"
        remedy = "write for example gpu-operator/default-mig-parted-config"
        raise InputError("shoal client serve", "--mig-config-map", problem, remedy)


def _webhook_tls(listen: str, certificate: Path | None, key: Path | None) -> Tls | None:
    from shoal_client.serve.server import Tls

    if not listen:
        return None
    if certificate is None or key is None:
        remedy = "give --webhook-cert and --webhook-key"
        raise InputError("shoal client serve", "--webhook-listen", "an API server speaks HTTPS only", remedy)
    return Tls(certificate, key)


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    from shoal_client.serve.server import Tls

    if certificate is None and key is None:
        if client_ca is not None:
            remedy = "give --tls-cert and --tls-key too"
            raise InputError("shoal client serve", "--client-ca", "needs HTTPS", remedy)
        return None
    if certificate is None or key is None:
        given = "--tls-key" if certificate is None else "--tls-cert"
        raise InputError("shoal client serve", given, "stands alone", "give --tls-cert and --tls-key")
    return Tls(certificate, key, client_ca)
