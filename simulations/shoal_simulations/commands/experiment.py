# SPDX-License-Identifier: Apache-2.0
"""`shoal experiment`: reproducible experiments that write their own results page."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal_common.errors import InputError

app = typer.Typer(add_completion=False, help="Run a reproducible experiment.")

EXPERIMENTS = {
    "federation": "Learning is real, federation is real: every row and control on the embedded fleet.",
    "action_interface": "Set-TD3, Wolpertinger and literal score-vector TD3 on one-step placement.",
}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list", epilog="Example:  shoal experiment list")
def list_experiments(as_json: Json = False) -> None:
    """Name the experiments and what they show."""
    if as_json:
        print(json.dumps(EXPERIMENTS))
        return
    for name, text in EXPERIMENTS.items():
        print(f"{name:<18}{text}")


@app.command(epilog="Example:  shoal experiment run federation --out docs/results")
def run(
    name: Annotated[str, typer.Argument(help="One of those that `shoal experiment list` prints.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.json and NAME.md.")] = Path("docs/results"),
    quick: Annotated[bool, typer.Option("--quick", help="A short form: fewer seeds, no claims.")] = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and write its results page."""
    from shoal_simulations import results

    if name not in EXPERIMENTS:
        names = ", ".join(EXPERIMENTS)
        raise InputError("shoal experiment run", "NAME", f"no experiment {name!r}", f"use one of {names}")
    results.prepare(out)  # now, not after an hour
    module = importlib.import_module(f"shoal_simulations.experiments.{name}")
    result: dict[str, Any] = {"name": name, "commit": results.commit(), **module.run(quick=quick)}
    data, page = results.write(result, out)
    if as_json:
        print(json.dumps(result))
        return
    for claim in [*result["claims"], *result["controls"]]:
        low, high = claim["ci95"]
        verdict = "holds" if claim["holds"] else "DOES NOT HOLD"
        print(f"{claim['claim']}: {claim['estimate']:.4g} [{low:.4g}, {high:.4g}] {verdict}")
    if quick:
        print("This is the short form: fewer seeds and updates. docs/results/ has the measured one.")
    print(f"{data} {page}")
