# SPDX-License-Identifier: Apache-2.0
"""`shoal bench`: speed and parity side by side with peers, each figure with its peer's and the ratio."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)

EPILOG = "Examples:  shoal bench engine --quick  |  shoal bench federation --json  |  shoal bench openb"

WHAT = (
    "engine: placements and steps per second. federation: client tasks per second against Flower with Ray. "
    "openb: allocation against the published FGD results."
)


class Benchmark(StrEnum):
    """What can be measured; each is the module of its name in `benchmarks/`."""

    ENGINE = "engine"
    FEDERATION = "federation"
    OPENB = "openb"


@app.command(epilog=EPILOG)
def bench(
    what: Annotated[Benchmark, typer.Argument(metavar="WHAT", help=WHAT)],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions: ends within 50 s.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure on this machine, next to the peer it is compared with."""
    module = importlib.import_module(f"shoal_simulations.benchmarks.{what.value}")
    result: dict[str, Any] = module.run(quick=quick)
    if as_json:
        print(json.dumps(result))
    else:
        _print(what.value, result)


def _print(title: str, result: Mapping[str, Any]) -> None:
    """Print the document as a table of figures, nested ones by their path."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"shoal bench {title}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for path, value in _flat(result, ""):
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        table.add_row(escape(path), escape(shown))
    Console().print(table)


def _flat(value: object, path: str) -> list[tuple[str, object]]:
    """Leaves of a nested document with their paths."""
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in _flat(inner, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in _flat(inner, f"{path}[{i}]")]
    return [(path, value)]
