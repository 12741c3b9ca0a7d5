# SPDX-License-Identifier: Apache-2.0
"""`shoal client replay`: yesterday's experience against a candidate policy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal_common.errors import InputError

EPILOG = """Examples:

  shoal client replay --policy candidate --store /var/lib/shoal/experience

  shoal client replay --policy candidate --incumbent runs/demo/policy --store S --nodes nodes.json --json

nodes.json is what `kubectl get nodes -o json` prints; without --nodes the API server is asked.
Exit code 0: the candidate passed the gate; 1: it did not; 2: the command itself is wrong."""


def replay(
    policy: Annotated[Path, typer.Option(help="Directory of the candidate's artifact.")],
    store: Annotated[Path, typer.Option(help="Directory of the experience store.")],
    incumbent: Annotated[
        str, typer.Option(help="What it must beat: an artifact's directory or a compiled scorer.")
    ] = "kube@1.36",
    nodes: Annotated[
        Path | None, typer.Option(help="The nodes as JSON. Default: those of the API server.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: in-cluster credentials, else $KUBECONFIG.")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, help="How far back the experience goes.")] = 24.0,
    seconds: Annotated[float, typer.Option(help="Length of an episode in the twin.")] = 3600.0,
    seeds: Annotated[int, typer.Option(min=3, max=1000, help="Episodes; each has its own arrivals.")] = 8,
    least_gain: Annotated[
        float, typer.Option(help="What the gain's lower bound must exceed, in percent.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare a candidate with the incumbent on this cluster's own recent experience.

    Twice: in a twin of the cluster with the pods that came, and by off-policy estimates on the decisions
    whose propensities are known. Nothing is changed in the cluster. It may run beside the client.
    """
    from shoal_client.diagnosis.replay import Question, read_nodes, replay_experience

    if not store.is_dir():
        remedy = "give the directory that shoal client serve --store writes"
        raise InputError("shoal client replay", "--store", f"{store} is no directory", remedy)
    question = Question(policy, incumbent, store, time.time() - 3600 * hours, seconds, seeds, least_gain)
    done = replay_experience(question, read_nodes(nodes, kubeconfig))
    typer.echo(json.dumps(done.json()) if as_json else _text(done.json()))
    raise typer.Exit(0 if done.verdict.passed else 1)


def _text(done: dict[str, Any]) -> str:
    twin, off = done["twin"], done["off_policy"]
    verdict = "passed" if twin["passed"] else "NOT passed"
    bounds = f"[{_percent(twin['low'])}, {_percent(twin['high'])}]"
    lines = [
        f"{done['decisions']} decisions, {done['pods']} pods bound, {done['nodes']} nodes",
        "",
        f"twin, against {twin['incumbent']}: gain {_percent(twin['gain'])} {bounds}: {verdict}",
        f"  {twin['reason']}",
        "",
        f"off-policy, {off['used']} decisions with known propensities "
        f"(effective {off['effective_sample_size']:.0f}):",
    ]
    if done["nodes_sampled"] < done["nodes"]:
        sample = f"{done['nodes_sampled']} of {done['nodes']} nodes"
        lines.insert(
            1, f"the twin scores every node; kube-scheduler samples {sample} (percentageOfNodesToScore)"
        )
    if off["used"]:
        for name, title in OFF_POLICY.items():
            value, low, high = (off[name][key] for key in ("value", "low", "high"))
            lines.append(f"  {title:<34} {_number(value)} [{_number(low)}, {_number(high)}]")
    else:
        lines.append("  they are known while an active SchedulingPolicy explores (exploration.epsilon)")
    lines += [f"  left out: {count} {why}" for why, count in off["excluded"].items() if count]
    return "\n".join(lines)


OFF_POLICY = {
    "logged": "what was got",
    "snips": "candidate, weighted (SNIPS)",
    "dr": "candidate, doubly robust",
    "gain": "gain, doubly robust",
}


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:+.4f}"


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:+.2f} %"
