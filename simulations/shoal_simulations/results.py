# SPDX-License-Identifier: Apache-2.0
"""The results page of an experiment: one JSON document, and the Markdown rendered from it.

{"name", "commit", "seeds", "claims": [{"claim", "estimate", "ci95": [low, high], "holds"}],
"controls": [...], "metrics": {...}}; controls have the form of claims, metrics are values or tables: lists of
rows with equal keys.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal_common.errors import InputError


def commit() -> str:
    """The commit of the checkout that the code runs from, with `+` where it has changes; else `unknown`."""
    here = Path(__file__).parent
    try:
        name = _git(here, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def prepare(folder: Path) -> None:
    """Make the folder of a results page, and see that it takes files.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        problem = f"cannot be used ({error.strerror})"
        raise InputError(str(folder), "--out", problem, "name another folder") from None


def write(result: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write NAME.json and NAME.md into a folder; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / f"{result['name']}.json", folder / f"{result['name']}.md"
    data.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    page.write_text(markdown(result), encoding="utf-8")
    return data, page


def markdown(result: Mapping[str, Any]) -> str:
    """The page of a result."""
    name = result["name"]
    parts = [
        f"# Results: {name.replace('_', ' ')}\n\n",
        f"<!-- Written by `shoal experiment run {name}`; do not edit. -->\n\n",
        f"Commit {result['commit']}, {result['seeds']} training seeds. Intervals are 95 %. All figures come "
        "from the twin on one machine; none is a promise for a live cluster. "
        f"Data: [{name}.json]({name}.json).\n\n",
    ]
    if note := result.get("note"):
        parts.append(f"{note}\n\n")
    parts += ["## Claims\n", _claims(result["claims"])]
    if result["controls"]:
        parts += ["\n## Controls\n", _claims(result["controls"])]
    parts += [_metric(key, value) for key, value in result["metrics"].items()]
    return "".join(parts)


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """A table of claims; one that does not hold says so in capitals."""
    lines = ["| claim | estimate | 95 % interval | holds |\n|---|---|---|---|\n"]
    for c in claims:
        low, high = c["ci95"]
        holds = "yes" if c["holds"] else "**NO**"
        lines.append(
            f"| {c['claim']} | {_number(c['estimate'])} | {_number(low)} to {_number(high)} | {holds} |\n"
        )
    return "".join(lines)


def _metric(key: str, value: object) -> str:
    """One section: a table for rows, a line for a single value, JSON for anything else."""
    title = f"\n## {key.replace('_', ' ').capitalize()}\n"
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        columns = list(value[0])
        head = "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|\n"
        rows = ["| " + " | ".join(_number(row.get(c)) for c in columns) + " |\n" for row in value]
        return title + head + "".join(rows)
    if isinstance(value, Mapping | list):
        return f"{title}```json\n{json.dumps(value, indent=1)}\n```\n"
    return f"{title}{_number(value)}\n"


def _number(value: object) -> str:
    if isinstance(value, list) and len(value) == 2:
        return f"{_number(value[0])} to {_number(value[1])}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
