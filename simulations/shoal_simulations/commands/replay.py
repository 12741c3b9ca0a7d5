# SPDX-License-Identifier: Apache-2.0
"""`shoal replay`: a pod list onto a node list under a scorer, by openb's rules or with time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal_common.errors import InputError

if TYPE_CHECKING:
    from shoal_simulations.openb import Chooser, Cluster, Order
    from shoal_simulations.traces.base import NodeTrace, PodTrace

EXAMPLES = """
Examples:

  shoal replay --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv --scorer fgd

  shoal replay --nodes NODES.csv --pods PODS.csv --scorer bestfit --order go_order.npz --key default_42 --json

  shoal replay --nodes NODES.csv --pods PODS.csv --scorer fgd --lifetimes --share 0.01
"""

app = typer.Typer(add_completion=False)


@app.command(epilog=EXAMPLES)
def replay(
    nodes: Annotated[Path, typer.Option(help="Node list (openb CSV).")],
    pods: Annotated[Path, typer.Option(help="Pod list (openb CSV).")],
    scorer: Annotated[
        str,
        typer.Option(help="fgd, bestfit, dotprod, gpupacking, gpuclustering, random or a policy artifact."),
    ],
    order: Annotated[Path | None, typer.Option(help="Arrival and tie orders (.npz).")] = None,
    key: Annotated[str | None, typer.Option(help="Which order of the file, such as default_42.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn order and of the random scorer.")] = 0,
    lifetimes: Annotated[bool, typer.Option(help="Pods arrive and leave at their real times.")] = False,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With --lifetimes: use this share of the nodes.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Replay a pod list onto a node list and report the GPU allocation and fragmentation."""
    from shoal_simulations.traces.openb import read_nodes, read_pods

    node_trace, pod_trace = read_nodes(nodes), read_pods(pods)
    tie_order = _order(node_trace, pod_trace, order, key, seed)
    if lifetimes:
        few = replace(tie_order, nodes=tie_order.nodes[: max(1, round(share * len(node_trace)))])
        report = _online(node_trace, pod_trace, few, scorer, seed)
    else:
        if not node_trace.gpus.any():
            raise InputError(
                str(nodes), "gpu", "no node has one, so there is no share to allocate", "add some"
            )
        if share != 1.0:
            raise InputError("--share", "share", "is for --lifetimes only", "add --lifetimes or leave it out")
        report = _arrivals(node_trace, pod_trace, tie_order, scorer, seed)
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)


def _order(nodes: NodeTrace, pods: PodTrace, path: Path | None, key: str | None, seed: int) -> Order:
    from shoal_simulations.openb import drawn_order, load_order

    if path is None and key is None:
        return drawn_order(nodes, pods, seed)
    if path is None or key is None:
        raise InputError("--order", "--key", "one is given without the other", "give both or none")
    return load_order(path, key, nodes, pods)


def _chooser(cluster: Cluster, scorer: str, seed: int) -> Chooser:
    """The choice behind a scorer's name or a policy artifact's directory.

    Raises:
        InputError: there is no such scorer.
    """
    from shoal_common.scorers.fgd import POLICIES
    from shoal_simulations.openb import by_policy, by_scorer

    if scorer in POLICIES:
        return by_policy(cluster, scorer, seed)
    if Path(scorer).is_dir():
        from shoal_simulations.openb_policy import PolicyOnOpenb

        return by_scorer(cluster, PolicyOnOpenb(cluster, Path(scorer)))
    remedy = f"use one of {', '.join(POLICIES)} or the directory of a policy artifact"
    raise InputError("--scorer", scorer, "there is no such scorer", remedy)


def _arrivals(nodes: NodeTrace, pods: PodTrace, order: Order, scorer: str, seed: int) -> dict[str, Any]:
    """The published experiment: nobody leaves, demand to 130 %."""
    from shoal_common.scorers.fgd import POLICIES
    from shoal_simulations import openb

    cluster = openb.prepare(nodes, pods, order)
    if scorer in POLICIES:
        result = openb.replay(cluster, scorer, seed)
    else:
        result = openb.replay_chosen(cluster, _chooser(cluster, scorer, seed))
    allocation, fragmentation = openb.columns(result)
    return {
        "scorer": scorer,
        "allocation": allocation,
        "fragmentation": fragmentation,
        "pods": len(result.node),
        "seconds": result.seconds,
    }


def _online(nodes: NodeTrace, pods: PodTrace, order: Order, scorer: str, seed: int) -> dict[str, Any]:
    """With time: creation, duration, queue."""
    import numpy as np

    from shoal_simulations import openb
    from shoal_simulations.lifetimes import run_online

    cluster = openb.prepare(nodes, pods, openb.Order(np.arange(len(pods)), order.nodes))
    online = run_online(cluster, pods, _chooser(cluster, scorer, seed))
    waits = online.waits_s if len(online.waits_s) else np.zeros(1)
    return {
        "scorer": scorer,
        "allocation": {"mean": online.gpu_allocation, "peak": online.gpu_allocation_peak},
        "cpu_allocation": {"mean": online.cpu_allocation},
        "fragmentation": {"mean": online.fragmentation},
        "waiting_s": {
            "mean": float(waits.mean()),
            "p50": float(np.quantile(waits, 0.5)),
            "p99": float(np.quantile(waits, 0.99)),
            "max": float(waits.max()),
        },
        "pending": {"mean": online.pending},
        "never_started": online.never_started,
        "pods": len(pods),
        "nodes": len(order.nodes),
        "span_s": online.span_s,
        "seconds": online.seconds,
    }


def _print(report: dict[str, Any]) -> None:
    """A table: every tenth column of the experiment, or the figures of an online replay."""
    view = Table(title=f"{escape(report['scorer'])}: {report['pods']} pods in {report['seconds']:.2f} s")
    if "waiting_s" in report:
        view.add_column("figure")
        view.add_column("value", justify="right")
        for name, value in report.items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            for part, number in parts:
                view.add_row(f"{name} {part}", f"{number:.2f}" if isinstance(number, float) else str(number))
    else:
        view.add_column("arrived %", justify="right")
        view.add_column("allocated GPU %", justify="right")
        view.add_column("fragmented GPU %", justify="right")
        for column in range(0, 131, 10):
            allocated = report["allocation"].get(str(column))
            if allocated is not None:
                fragmented = report["fragmentation"][str(column)]
                view.add_row(str(column), f"{allocated:.2f}", f"{fragmented:.2f}")
    Console().print(view)
