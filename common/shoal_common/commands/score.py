# SPDX-License-Identifier: Apache-2.0
"""`shoal score`: what a scorer answers for pods in given clusters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal_common.errors import InputError
from shoal_common.kube.cases import Case, read_cases
from shoal_common.kube.snapshot import Snapshot
from shoal_common.kube.verdict import Verdict
from shoal_common.pods import PodRecord

SnapshotScorer = Callable[[Snapshot, PodRecord], Verdict]

EPILOG = """Examples:

  shoal score --scorer kube@1.36 --input cases.json.gz --json > answers.json

  shoal score --scorer volcano --input cases.json --top 3

  shoal score --scorer runs/demo/policy --input cases.json"""


def _kube_1_36() -> SnapshotScorer:
    from shoal_common.kube.profile import evaluate

    return evaluate


def _kube_1_35() -> SnapshotScorer:
    from shoal_common.kube.profile import evaluate

    return lambda snapshot, pod: evaluate(snapshot, pod, version="1.35")


def _most_allocated() -> SnapshotScorer:
    from shoal_common.kube.profile import evaluate_most_allocated

    return evaluate_most_allocated


def _volcano() -> SnapshotScorer:
    from shoal_common.kube.volcano import evaluate

    return evaluate


def _fgd() -> SnapshotScorer:
    from shoal_common.scorers.fgd_snapshot import score_snapshot

    return score_snapshot


SCORERS: dict[str, Callable[[], SnapshotScorer]] = {
    "kube@1.36": _kube_1_36,
    "kube@1.35": _kube_1_35,
    "most-allocated": _most_allocated,
    "volcano": _volcano,
    "fgd": _fgd,
}
"""The scorers by name; each imports what it needs when it is asked for."""


def load_scorer(name: str) -> SnapshotScorer:
    """The scorer of this name, or of the policy artifact in this directory.

    Raises:
        InputError: neither is there.
    """
    if name in SCORERS:
        return SCORERS[name]()
    if Path(name).is_dir():
        return _artifact(Path(name))
    remedy = f"write one of {', '.join(SCORERS)}, or the directory of a policy artifact"
    raise InputError("--scorer", repr(name), "is neither a scorer nor a directory", remedy)


def _artifact(path: Path) -> SnapshotScorer:
    from shoal_common.decide import snapshot_scorer

    return snapshot_scorer(path)


app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def score(
    source: Annotated[
        Path,
        typer.Option(
            "--input", help="Cases: a JSON list, gzipped or not, objects as Kubernetes writes them."
        ),
    ],
    scorer: Annotated[
        str, typer.Option(help=f"One of {', '.join(SCORERS)}, or the directory of a policy artifact.")
    ] = "kube@1.36",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list, a row per case.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Nodes to show per case without --json.")] = 5,
) -> None:
    """Score the nodes of each case's cluster for its pending pod.

    Each row has the nodes that may host the pod, why the others may not (kube-scheduler's own sentences and
    status codes), every plugin's weighted score and the total. docs/scorers-kube.md says how exact each is.
    """
    evaluate = load_scorer(scorer)
    answers = [(case, evaluate(case.snapshot, case.pod)) for case in read_cases(source)]
    if as_json:
        typer.echo(json.dumps([verdict.document(case.name) for case, verdict in answers]))
        return
    console = Console()
    for case, verdict in answers:
        console.print(_table(case, verdict, scorer, top))


def _table(case: Case, verdict: Verdict, scorer: str, top: int) -> Table:
    pod, nodes = case.pod, len(case.snapshot.nodes)
    share = f"{len(verdict.feasible)} of {nodes} nodes"
    title = _plain(f"{case.name}: pod {pod.namespace}/{pod.name} under {scorer}, {share}")
    plugins = sorted({plugin for row in verdict.scores.values() for plugin in row})
    if not verdict.feasible:
        return _refusals(title, verdict)
    table = Table(title=title, title_justify="left")
    table.add_column("node")
    for plugin in plugins:
        table.add_column(re.sub(r"(?<=[a-z])(?=[A-Z])", "\n", plugin), justify="right")
    table.add_column("total", justify="right")
    for node in sorted(verdict.feasible, key=lambda name: -verdict.total[name])[:top]:
        row = verdict.scores[node]
        table.add_row(_plain(node), *(f"{row[plugin]:g}" for plugin in plugins), f"{verdict.total[node]:g}")
    return table


def _plain(text: str) -> Text:
    """The text as it stands: no markup, nothing that a terminal would obey or cannot encode."""
    return Text("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def _refusals(title: Text, verdict: Verdict) -> Table:
    table = Table("node", "why not", title=title, title_justify="left")
    for node, reasons in verdict.failures.items():
        table.add_row(_plain(node), _plain("; ".join(reasons)))
    return table
