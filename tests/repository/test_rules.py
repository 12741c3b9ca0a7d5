# SPDX-License-Identifier: Apache-2.0
"""Rules of the repository that no linter knows: licence line, sizes, entry points, exported names."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "common/shoal_common",
    "client/shoal_client",
    "server/shoal_server",
    "simulations/shoal_simulations",
)
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 400, 60


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=relative)
def test_a_file_starts_with_the_licence_line(path: Path) -> None:
    assert path.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")


def _statement_lines(function: ast.AST) -> int:
    body = getattr(function, "body")  # noqa: B009
    first = body[1] if ast.get_docstring(function) and len(body) > 1 else body[0]
    return int(body[-1].end_lineno - first.lineno + 1)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE
    functions = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {f.name: _statement_lines(f) for f in functions if _statement_lines(f) > LONGEST_FUNCTION}
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_names_say_what_is_in_a_file(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "manager", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_exported_names_exist(path: Path) -> None:
    tree = ast.parse(path.read_text())
    named = {
        t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }
    if "__all__" not in named:
        return
    package = path.relative_to(ROOT / path.relative_to(ROOT).parts[0]).with_suffix("")
    module = importlib.import_module(".".join(p for p in package.parts if p != "__init__"))
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize("point", entry_points(group="shoal.commands"), ids=lambda p: p.name)
def test_an_entry_point_loads(point) -> None:
    import typer

    assert isinstance(point.load(), typer.Typer)


def test_every_declared_command_is_installed() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "shoal.commands"
    ]
    assert {p.name: p.value for p in entry_points(group="shoal.commands")} == declared


def test_constraints_pin_torch_first() -> None:
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if not x.startswith("#")]
    assert lines[0].startswith("torch==")
