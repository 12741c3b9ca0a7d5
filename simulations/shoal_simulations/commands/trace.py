# SPDX-License-Identifier: Apache-2.0
"""`shoal trace list|check|info`: which traces can be read, whether a file is sound, what is in it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    import numpy.typing as npt

    from shoal_simulations.traces.base import NodeTrace, PodTrace

EXAMPLES = """
Examples:

  shoal trace list

  shoal trace check openb_pod_list_default.csv

  shoal trace info task_events/part-00000-of-00500.csv.gz --json
"""

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
TRACE = Annotated[Path, typer.Argument(help="A trace file, plain or .gz.")]

app = typer.Typer(help="List, check and describe traces.", epilog=EXAMPLES, add_completion=False)


@app.command("list")
def list_(as_json: JSON = False) -> None:
    """List the traces that can be read, their publishers and licences. None comes with Shoal."""
    from shoal_simulations.traces.catalogue import FORMATS

    fields = ("name", "holds", "files", "publisher", "licence", "citation")
    rows = [{name: getattr(x, name) for name in fields} for x in FORMATS]
    if as_json:
        print(json.dumps(rows))
        return
    view = Table(title="Traces (get the files from their publisher)")
    for name in fields[:-1]:
        view.add_column(name, overflow="fold")
    for row in rows:
        view.add_row(*(row[name] for name in fields[:-1]))
    Console().print(view)


@app.command()
def check(path: TRACE, as_json: JSON = False) -> None:
    """Read every row of a trace; a bad one is named by file, line and column (exit code 2)."""
    from shoal_simulations.traces.catalogue import read

    found, trace = read(path)
    if as_json:
        print(json.dumps({"path": str(path), "format": found.name, "rows": len(trace), "valid": True}))
    else:
        print(f"{path}: {found.name}, {len(trace)} records, no bad row")


@app.command()
def info(path: TRACE, as_json: JSON = False) -> None:
    """Count and describe what a trace holds: spans, requests, durations, classes."""
    from shoal_simulations.traces.base import NodeTrace
    from shoal_simulations.traces.catalogue import read

    found, trace = read(path)
    body = _nodes(trace) if isinstance(trace, NodeTrace) else _pods(trace)
    report = {"path": str(path), "format": found.name, "licence": found.licence, **body}
    if as_json:
        print(json.dumps(report))
        return
    view = Table(title=escape(str(path)))
    view.add_column("figure")
    view.add_column("value", overflow="fold")
    for name, value in report.items():
        text = ", ".join(f"{k} {_short(v)}" for k, v in value.items()) if isinstance(value, dict) else value
        view.add_row(name, escape(str(text)))
    Console().print(view)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _nodes(trace: NodeTrace) -> dict[str, Any]:
    import numpy as np

    by_model = {
        name: {
            "nodes": int((trace.model == i).sum()),
            "gpus": int(trace.gpus[trace.model == i].sum()),
        }
        for i, name in enumerate(trace.models)
    }
    shapes = np.unique(np.stack([trace.cpu_milli, trace.memory_mib, trace.gpus, trace.model]), axis=1)
    return {
        "nodes": len(trace),
        "shapes": shapes.shape[1],
        "cpu_milli": int(trace.cpu_milli.sum()),
        "memory_mib": int(trace.memory_mib.sum()),
        "gpus": int(trace.gpus.sum()),
        "gpu_models": by_model,
    }


def _pods(trace: PodTrace) -> dict[str, Any]:
    import numpy as np

    from shoal_simulations.traces.base import SERVICE_CLASSES

    known = ~np.isnan(trace.arrival_s)
    gpus, counts = np.unique(trace.num_gpu, return_counts=True)
    classes = {c: int((trace.service_class == i).sum()) for i, c in enumerate(SERVICE_CLASSES)}
    return {
        "pods": len(trace),
        "timed": trace.timed,
        "span_s": float(np.ptp(trace.arrival_s[known])) if known.any() else None,
        "with_duration": int((~np.isnan(trace.duration_s)).sum()),
        "cpu_milli": _quantiles(trace.cpu_milli),
        "memory_mib": _quantiles(trace.memory_mib),
        "duration_s": _quantiles(trace.duration_s),
        "wait_s": _quantiles(trace.wait_s),
        "num_gpu": {str(g): int(c) for g, c in zip(gpus.tolist(), counts.tolist(), strict=True)},
        "fractional_gpu": int(((trace.num_gpu == 1) & (trace.gpu_milli < 1000)).sum()),
        "gpu_milli_total": int((trace.gpu_milli * trace.num_gpu).sum()),
        "with_gpu_model": int((trace.gpu_spec > 0).sum()),
        "service_classes": classes,
        "tenants": len(trace.tenants),
        "priorities": len(np.unique(trace.priority)),
    }


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float | None]:
    """Mean and quantiles of the known values; None where none is known."""
    import numpy as np

    known = values[~np.isnan(values.astype(np.float64))]
    if not len(known):
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    points = np.quantile(known, [0.5, 0.9, 0.99, 1.0]).tolist()
    figures = {"mean": float(known.mean()), **dict(zip(("p50", "p90", "p99", "max"), points, strict=True))}
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
