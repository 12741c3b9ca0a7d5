# SPDX-License-Identifier: Apache-2.0
"""`shoal policy`: print and check a policy artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, help="Print and check a policy artifact.")

Directory = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the artifact.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command(epilog="Example:  shoal policy show runs/demo/policy --json")
def show(path: Directory, as_json: Json = False) -> None:
    """Print a verified artifact: its manifest, its size, its digest and what its training guarantees."""
    from shoal_common.policy import PolicyArtifact, privacy_statement

    manifest = PolicyArtifact.load(path).manifest
    if as_json:
        print(json.dumps({**manifest, "privacy_statement": privacy_statement(manifest), "verified": True}))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"policy {path}"), title_justify="left")
    table.add_column("field")
    table.add_column("value", overflow="fold")
    rows = {name: value for name, value in manifest.items() if name not in ("privacy", "provenance")}
    for name, value in [*rows.items(), *manifest["provenance"].items()]:
        table.add_row(escape(name), "none" if value is None else escape(json.dumps(value).strip('"')))
    table.add_row("privacy", escape(privacy_statement(manifest)))
    Console().print(table)


@app.command(epilog="Example:  shoal policy verify runs/demo/policy")
def verify(path: Directory, as_json: Json = False) -> None:
    """Check files, digest and schema; exit code 2 where a byte changed, 1 where the schema differs."""
    from shoal_common.policy import PolicyArtifact

    manifest = PolicyArtifact.load(path).manifest
    signed = manifest["signature"] is not None
    if as_json:
        print(json.dumps({"verified": True, "digest": manifest["digest"], "signed": signed}))
    else:
        print(f"{path}: verified, sha256 {manifest['digest']}, {'signed' if signed else 'not signed'}")
