# SPDX-License-Identifier: Apache-2.0
"""`shoal bench`: speed and parity side by side with peers, each figure with its peer's and the ratio."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal_common.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  shoal bench engine --quick

  shoal bench extender --nodes 100 --quick --json

  shoal bench extender --policy runs/demo/policy

  shoal bench soak --quick

Exit code 0: it ran, whatever it measured; 2: the command itself is wrong."""

WHAT = (
    "engine: placements and steps per second. federation: client tasks per second against Flower with Ray. "
    "extender: latency and rate of prioritize over HTTP. "
    "informer: memory, lists, heartbeats and events of a live cluster's state. "
    "openb: allocation against the published FGD results. "
    "soak: a day of a live client's life, for memory and lost decisions. "
    "outage: ten minutes without the API server."
)


class Benchmark(StrEnum):
    """What can be measured; each is the module of its name in `benchmarks/`."""

    ENGINE = "engine"
    EXTENDER = "extender"
    FEDERATION = "federation"
    INFORMER = "informer"
    OPENB = "openb"
    SOAK = "soak"
    OUTAGE = "outage"


@app.command(epilog=EPILOG)
def bench(
    what: Annotated[Benchmark, typer.Argument(metavar="WHAT", help=WHAT)],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions: ends within 50 s.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    nodes: Annotated[int | None, typer.Option(min=2, max=20_000, help="extender: nodes and names.")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="extender: artifact to serve (default: an untrained one).")
    ] = None,
) -> None:
    """Measure on this machine, next to the peer it is compared with."""
    extra = {key: value for key, value in (("nodes", nodes), ("policy", policy)) if value is not None}
    if extra and what is not Benchmark.EXTENDER:
        option = f"--{next(iter(extra))}"
        raise InputError("shoal bench", option, f"means nothing to {what.value}", "leave it out")
    module = importlib.import_module(f"shoal_simulations.benchmarks.{what.value}")
    result: dict[str, Any] = module.run(quick=quick, **extra)
    if as_json:
        print(json.dumps(result))
    else:
        _print(what.value, result)


def _print(title: str, result: Mapping[str, Any]) -> None:
    """Print single values as one table, and each list of rows as a table of its own."""
    from rich.console import Console

    console = Console()
    console.print(_table(f"shoal bench {title}", ["figure", "value"], _flat(result, "")))
    for key, value in result.items():
        if _is_rows(value):
            columns = [c for c in value[0] if any(row.get(c) not in (None, "") for row in value)]
            console.print(_table(key, columns, [tuple(row.get(c) for c in columns) for row in value]))


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(escape(column))
    for row in rows:
        table.add_row(*(escape(_shown(value)) for value in row))
    return table


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _flat(value: object, path: str) -> list[tuple[object, ...]]:
    """Single values of a nested document with their paths."""
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in _flat(inner, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [] if _is_rows(value) else [(path, ", ".join(map(str, value)))]
    return [(path, value)]
