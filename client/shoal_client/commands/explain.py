# SPDX-License-Identifier: Apache-2.0
"""`shoal client explain POD`: why this node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal_client.diagnosis.explanation import Decided, Explanation

EPILOG = """Examples:

  shoal client explain web-0 -n shop --store /var/lib/shoal/experience --policy runs/demo/policy

  shoal client explain web-0 --kubeconfig ~/.kube/config --policy P --json

  shoal client explain web-0 --prometheus http://prometheus:9090"""

SHOWN_EFFECTS = 6


def explain(
    pod: Annotated[str, typer.Argument(help="Name of the pod.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: in-cluster credentials, else $KUBECONFIG.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory of the experience store: what was decided.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Directory of the artifact that decided: what each feature did.")
    ] = None,
    prometheus: Annotated[
        str, typer.Option(help="URL of a Prometheus server: the live features of the node, asked for once.")
    ] = "",
    prometheus_token: Annotated[Path | None, typer.Option(help="File with a bearer token for it.")] = None,
    prometheus_ca: Annotated[Path | None, typer.Option(help="CA certificates it is verified by.")] = None,
    top: Annotated[int, typer.Option(min=1, max=64, help="Candidates shown.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say why a pod is on its node: policy, mode, the best candidates with scores and features, refusals.

    Without a recorded decision a pod that waits is decided now, as the client would. Nothing is changed.
    """
    from shoal_client.collect.prometheus import PrometheusClient
    from shoal_client.diagnosis.explain import Explainer
    from shoal_client.kube.api import connect

    client = PrometheusClient(prometheus, prometheus_token, prometheus_ca) if prometheus else None
    found = Explainer(connect(kubeconfig), store, policy, top, client).explain(namespace, pod)
    typer.echo(json.dumps(found.json()) if as_json else "\n".join(_lines(found)))


def _lines(found: Explanation) -> Iterator[str]:
    where = f"on {found.node}" if found.node else "on no node"
    yield f"{found.pod} ({found.uid}): {found.phase}, {where}"
    applied = found.policy
    if not applied.name:
        yield f"policy: {applied.why}"
    else:
        says = "its scores reach kube-scheduler" if applied.serves else f"neutral answers: {applied.why}"
        yield f"policy {applied.name}, mode {applied.mode}: {says}"
    if found.decision is None:
        yield "no decision is known: none was asked for, one node alone was feasible, or --store is not given"
    else:
        yield from _decision(found.decision)
    for refused in found.refusals:
        more = ", ..." if refused.nodes > len(refused.examples) else ""
        yield f"cannot take it now: {refused.nodes} ({', '.join(refused.examples)}{more}): {refused.reason}"

    if found.idle_milli_gpu:
        idle, unusable = found.idle_milli_gpu / 1000, found.unusable_milli_gpu / 1000
        yield f"GPUs: {idle:g} idle, {unusable:.2f} of them fragmented for this cluster's mix of pods (FGD)"
    if found.measured:
        yield from _live(found)


def _live(found: Explanation) -> Iterator[str]:
    from shoal_client.collect.features import LIVE_FEATURES

    known = f"{len(found.live)} of {len(LIVE_FEATURES)} known"
    yield f"live features of {found.measured} ({known}): feature, value, unit, age"
    for at in found.live:
        yield f"  {at.feature:<28} {at.value:>14.6g} {at.unit:<10} {at.age_seconds:6.1f} s"


def _decision(decided: Decided) -> Iterator[str]:
    if decided.source == "now":
        yield f"would be decided now by {decided.digest[:12]}: {decided.chosen or decided.reason}"
    else:
        by = f"by {decided.digest[:12]}" if decided.digest else "without a policy"
        about = f"attempt {decided.attempt}, mode {decided.mode} ({decided.asked_by})"
        yield f"decided {decided.at} {by}, {about}"
        because = f" ({decided.reason})" if decided.reason else ""
        placed = f"placed on {decided.taken or 'none'}: {decided.outcome}{because}"
        yield f"  chose {decided.chosen or 'none'}, {placed}"
    if decided.top:
        yield ""
        yield from _table(decided)
    if decided.effects:
        lead = "" if decided.lead is None else f" (it leads by {decided.lead:.3f})"
        yield f"why {decided.chosen}{lead}: feature, its value, mean of the others, effect on the lead"
        for effect in decided.effects[:SHOWN_EFFECTS]:
            yield f"  {effect.feature:<16} {effect.value:7.2f} {effect.others:7.2f} {effect.effect:+8.3f}"
        yield ""


def _table(decided: Decided) -> Iterator[str]:
    """The best candidates, with the features that say most: by effect, else the room that is left."""
    shown = [e.feature for e in decided.effects[:3]] or ["cpu_after", "memory_after", "cpu_load"]
    yield f"  {'rank':>4} {'node':<24} {'score':>8} {'chance':>7} " + " ".join(f"{f:>14}" for f in shown)
    for c in decided.top:
        marks = ("*" if c.chosen else " ") + ("=" if c.taken else " ")
        score, chance = (f"{v:.3f}" if v is not None else "-" for v in (c.score, c.propensity))
        values = " ".join(f"{c.features[f]:14.2f}" for f in shown)
        yield f"{marks}{c.rank:>4} {c.node:<24} {score:>8} {chance:>7} {values}"
    count = f"{decided.feasible} of {decided.candidates} candidates feasible"
    yield f"  * chosen by the policy, = placed there; {count}"
    yield ""
