# SPDX-License-Identifier: Apache-2.0
"""`shoal privacy`: print a ledger, and what a plan would cost before anything is trained."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal_common.errors import InputError
from shoal_common.privacy.config import WATERMARK, PrivacyConfig

GROUP_SHARE = 0.01
MOST = 100_000_000
CAVEAT = (
    "The guarantee covers a record's own contribution to what is shared. A decision also changes the cluster "
    "that later decisions observe; that trace is not covered."
)

app = typer.Typer(add_completion=False, help="Print a privacy ledger and what a plan would cost.")


@app.command(
    epilog="Example: shoal privacy ledger out/clusters/edge-1/ledger.jsonl --json",
)
def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger of one cluster (JSON lines).")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the epsilon; default: the last row's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Verify a ledger's hash chain; print its rows and the epsilon they add up to."""
    from shoal_common.privacy.ledger import Ledger

    if not path.is_file():
        raise InputError(str(path), "path", "there is no such file", "give the ledger of one cluster")
    if delta is not None and not 0 < delta < 1:
        raise InputError("shoal privacy ledger", "--delta", f"{delta} is not between 0 and 1", "give 1e-6")
    book = Ledger(path)
    last = book.rows[-1] if book.rows else None
    delta = delta if delta is not None or last is None else last.delta
    document = {
        "path": str(path),
        "verified": True,
        "head": book.head,
        "cluster": last.cluster if last else None,
        "epsilon": book.epsilon(delta) if delta is not None else 0.0,
        "delta": delta,
        "unit": last.unit if last else None,
        "neighbouring": last.neighbouring if last else None,
        "watermark": WATERMARK if any(row.simulation for row in book.rows) else None,
        "rows": [asdict(row) for row in book.rows],
    }
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _show_ledger(document)


@app.command(
    epilog="Example: shoal privacy plan --target-epsilon 3 --batch 128 --units 9000 --steps 900 --delta 1e-6",
)
def plan(
    batch: Annotated[int, typer.Option(help="Expected transitions in a batch.")],
    units: Annotated[
        int, typer.Option(max=MOST, help="Public number of transitions; each is drawn at batch / units.")
    ],
    steps: Annotated[int, typer.Option(max=MOST, help="Critic steps over the whole life.")],
    delta: Annotated[float, typer.Option(help="Probability that the guarantee fails.")],
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over clip norm.")] = None,
    target_epsilon: Annotated[float | None, typer.Option(help="Epsilon after the last step.")] = None,
    clip_norm: Annotated[float, typer.Option(help="Norm to which a gradient is clipped.")] = 1.0,
    actor_every: Annotated[int, typer.Option(help="Critic steps per actor step; 0: no actor.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Print epsilon, noise and sample rate of a plan, and what they mean for a tenant with many records."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = PrivacyConfig(
            delta=delta,
            clip_norm=clip_norm,
            batch=batch,
            units_public=units,
            critic_steps=steps,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
            actor_every=actor_every,
        )
        document = describe(config)
    document["warnings"] = [str(warning.message) for warning in caught]
    for text in document["warnings"]:
        typer.echo(f"warning: {text}", err=True)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _show_plan(document)


def describe(config: PrivacyConfig) -> dict[str, Any]:
    """A plan in figures, with the unit they are about and what they do not say."""
    from shoal_common.privacy import accountant

    segment = config.segment(0, config.critic_steps)
    records = max(1, round(GROUP_SHARE * config.units_public))
    try:
        group = accountant.group_epsilon(segment, records, config.delta)
    except OverflowError:
        problem = f"{config.sigma:g} is so small that epsilon has no finite value"
        raise InputError("privacy", "noise_multiplier", problem, "give a larger one, such as 1") from None
    return {
        "epsilon": config.planned_epsilon,
        "delta": config.delta,
        "unit": config.unit,
        "neighbouring": config.neighbouring,
        "noise_multiplier": config.sigma,
        "sample_rate": config.sample_rate,
        "releases": segment.steps,
        "clip_norm": config.clip_norm,
        "noise_std_sum": config.noise_std,
        "noise_std_mean": config.noise_std / config.batch,
        "parameters_where_noise_equals_signal": (config.batch / config.sigma) ** 2,
        "group": {
            "share": GROUP_SHARE,
            "records": records,
            "epsilon": group,
        },
        "caveat": CAVEAT,
    }


def _show_ledger(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    columns = ("round", "steps", "releases", "sample rate", "noise", "epsilon", "hash")
    table = Table(*columns, title=escape(document["path"]))
    for row in document["rows"]:
        table.add_row(
            str(row["round"]),
            f"{row['step_begin']}-{row['step_end']}",
            str(row["steps"]),
            f"{row['sample_rate']:.5g}",
            f"{row['noise_multiplier']:.4g}",
            f"{row['epsilon_after']:.4f}",
            row["hash"][:12],
        )
    console = Console()
    console.print(table)
    if not document["rows"]:
        console.print("nothing has been released")
        return
    console.print(
        f"cluster {document['cluster']}: epsilon {document['epsilon']:.4f} at delta {document['delta']:g} "
        f"(unit: one {document['unit']}, neighbours: {document['neighbouring']}); the chain verifies",
        markup=False,
    )
    if document["watermark"]:
        console.print(document["watermark"])


def _show_plan(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    group = document["group"]
    table = Table("figure", "value", title="Privacy plan")
    for name, value in (
        ("epsilon", f"{document['epsilon']:.4f} at delta {document['delta']:g}"),
        ("unit, neighbours", f"one {document['unit']}, {document['neighbouring']}"),
        ("noise multiplier", f"{document['noise_multiplier']:.4f}"),
        ("noise std, sum of a batch", f"{document['noise_std_sum']:.4g} per coordinate"),
        ("noise std, mean of a batch", f"{document['noise_std_mean']:.4g} per coordinate"),
        (
            "noise equals largest signal at",
            f"{document['parameters_where_noise_equals_signal']:,.0f} parameters",
        ),
        ("sample rate", f"{document['sample_rate']:.5g}"),
        ("releases (critic and actor)", f"{document['releases']:,}"),
        (f"a tenant with {group['share']:.0%} of the records", f"epsilon {group['epsilon']:,.1f}"),
    ):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    console.print(
        f"A tenant that owns {group['records']:,} records is protected only by its own, larger epsilon; "
    )
    console.print(f"above about 10 that is no protection. {CAVEAT}")
