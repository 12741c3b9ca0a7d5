# SPDX-License-Identifier: Apache-2.0
"""`shoal client export`: the recorded experience as one Parquet file."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from shoal_common.errors import InputError

EPILOG = """Examples:

  shoal client export --store /var/lib/shoal/experience --out experience.parquet

  shoal client export --store S --out day.parquet --since 2026-01-31T00:00:00Z --until 2026-02-01T00:00:00Z"""


def export(
    store: Annotated[Path, typer.Option(help="The directory of the store that the client writes.")],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    since: Annotated[str | None, typer.Option(help="Decisions from this time on (RFC 3339).")] = None,
    until: Annotated[str | None, typer.Option(help="Decisions before this time (RFC 3339).")] = None,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="With every candidate's features; some 20 times as large.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write recorded decisions and what became of them to a Parquet file. It may run beside the client.

    Names of tenants, apps and nodes are hashed with the store's local key; pods appear by their UID. The file
    is private to the cluster: nothing in it is differentially private.
    """
    from shoal_client.experience.export import export as write

    begin = _seconds("--since", since) if since else 0.0
    end = _seconds("--until", until) if until else float("inf")
    if end <= begin:
        raise InputError("shoal client export", "--until", "is not after --since", "give a later time")
    done = write(store, out, begin, end, candidates)
    if as_json:
        typer.echo(json.dumps({"file": str(out), **asdict(done)}))
        return
    typer.echo(f"{out}: {done.rows} decisions, {done.closed} closed, {done.learnable} to learn from")


def _seconds(option: str, text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InputError(
            "shoal client export",
            option,
            f"{text[:40]!r} is no time with a zone",
            "give 2026-01-31T12:00:00Z",
        )
    return time.timestamp()
