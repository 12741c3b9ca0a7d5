# SPDX-License-Identifier: Apache-2.0
"""`shoal client doctor`: check a cluster before and after Shoal is put into it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

EPILOG = """Examples:

  shoal client doctor --kubeconfig ~/.kube/config

  shoal client doctor --scheduler-config /etc/kubernetes/scheduler-config.yaml --prometheus http://prometheus:9090

  shoal client doctor --scheduler-config configmap:kube-system/scheduler --policy runs/demo/policy --json

Exit code 0: no error (there may be warnings); 1: at least one error; 2: the command itself is wrong."""


def doctor(
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: in-cluster credentials, else $KUBECONFIG.")
    ] = None,
    scheduler_config: Annotated[
        str, typer.Option(help="kube-scheduler's configuration: a file, or configmap:NAMESPACE/NAME.")
    ] = "",
    prometheus: Annotated[str, typer.Option(help="URL of a Prometheus server.")] = "",
    prometheus_token: Annotated[
        Path | None, typer.Option(help="File with a bearer token for it, read for each request.")
    ] = None,
    prometheus_ca: Annotated[Path | None, typer.Option(help="CA certificates it is verified by.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Directory of the policy artifact.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The privacy ledger of this cluster.")] = None,
    namespace: Annotated[str, typer.Option(help="Shoal's own namespace.")] = "shoal",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check API access, permissions, policies, kube-scheduler's configuration, metrics, clock and budget.

    Permissions are those of the credentials in use: run it with the client's own to check the client. Nothing
    is changed in the cluster.
    """
    from shoal_client.diagnosis.doctor import Doctor, Examination
    from shoal_client.diagnosis.findings import Level

    asked = Examination(
        kubeconfig, scheduler_config, prometheus, prometheus_token, prometheus_ca, policy, ledger, namespace
    )
    findings = []
    for finding in Doctor(asked).examine():
        findings.append(finding)
        if not as_json:
            typer.echo(finding.line())
    counts = {level.value: sum(f.level is level for f in findings) for level in Level}
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(f) for f in findings], "counts": counts}))
    raise typer.Exit(1 if counts["error"] else 0)
