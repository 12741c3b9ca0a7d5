# SPDX-License-Identifier: Apache-2.0
"""`shoal simulate`: federate virtual clusters, compare the policy with kube-scheduler, write a report."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from shoal_simulations.run import Progress
    from shoal_simulations.virtual import Run

app = typer.Typer(add_completion=False)

MOST_SEED = 2**32 - 1
QUIET = ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "RAY_USAGE_STATS_ENABLED=0")
EPILOG = (
    "Examples:  shoal simulate --out runs/one  |  shoal simulate --fleet my.toml --rounds 20 --workers 2 "
    "--out runs/two  |  shoal simulate --no-dp --json --out runs/three > summary.json"
)


class Engine(StrEnum):
    """What carries the messages."""

    IN_PROCESS = "in-process"
    RAY = "ray"


@app.command(epilog=EPILOG)
def simulate(
    out: Annotated[Path, typer.Option(help="Folder of the run: summary.json, report.html, policy/.")],
    fleet: Annotated[str, typer.Option(help="A TOML file, or an embedded fleet by name.")] = "default",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; default: the fleet's.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Decides everything random.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes; any number gives the same bits.")] = 1,
    engine: Annotated[Engine, typer.Option(help="ray: Flower's own engine, for many machines.")] = (
        Engine.IN_PROCESS
    ),
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Train without differential privacy.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard an earlier run in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json on standard output.")] = False,
) -> None:
    """Federate virtual clusters and compare the policy with kube-scheduler on held-out arrivals.

    A run that was broken off goes on at its round when the same command is given again.
    """
    from shoal_simulations.fleet import load_fleet, with_overrides

    chosen = with_overrides(load_fleet(fleet), rounds, no_dp)
    for setting in QUIET:  # read when Flower is imported
        os.environ.setdefault(*setting.split("=", 1))
    from rich.console import Console

    from shoal_simulations.report import print_comparison
    from shoal_simulations.run import Interrupted, Options, claim, run_federation
    from shoal_simulations.virtual import Run

    run, options = Run(chosen, seed), Options(out, engine.value, workers, fresh)
    claim(run, options)
    errors = Console(stderr=True)
    errors.print(_headline(run), highlight=False, markup=False, soft_wrap=True)
    try:
        with _Rounds(errors, chosen.federation.rounds) as watch:
            summary = run_federation(run, options, watch)
    except Interrupted as stopped:
        errors.print(str(stopped), highlight=False, markup=False)
        raise
    if as_json:
        print(json.dumps(summary))
        return
    print_comparison(summary, Console())
    print(f"Report: {out / 'report.html'}  Data: {out / 'summary.json'}")


def _headline(run: Run) -> str:
    """One line: what is about to happen."""
    fleet, privacy = run.fleet, run.privacy()
    guarantee = (
        f"epsilon {privacy.planned_epsilon:.2f} at delta {privacy.delta:g}" if privacy else "no privacy"
    )
    clusters, rounds = len(fleet.clusters), fleet.federation.rounds
    return f"fleet {fleet.fleet.name}: {clusters} clusters, {rounds} rounds, seed {run.seed}, {guarantee}"


class _Rounds:
    """The live line of a run on a terminal, a line a round elsewhere."""

    def __init__(self, console: Console, rounds: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("the clusters log their first decisions", total=rounds)

    def __enter__(self) -> _Rounds:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show one finished round."""
        epsilon = "none" if progress.epsilon is None else f"{progress.epsilon:.3f}"
        refused = f", {progress.refused} refused" if progress.refused else ""
        text = f"reward {progress.reward:.4f}, epsilon {epsilon}, {progress.seconds:.1f} s{refused}"
        self._bar.update(self._task, completed=progress.round, description=text)
        if not self._console.is_terminal:
            self._console.print(f"round {progress.round}/{progress.rounds}: {text}", highlight=False)
