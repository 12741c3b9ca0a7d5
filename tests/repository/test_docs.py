# SPDX-License-Identifier: Apache-2.0
"""The pages: links lead somewhere, commands exist, generated pages are what the code says."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
SHELL = re.compile(r"```(?:bash|sh|console)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?shoal ([a-z]+)", re.MULTILINE)
TARGET = re.compile(r"^(?:\$ )?make ([a-z0-9]+)", re.MULTILINE)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_exist(page: Path) -> None:
    blocks = "\n".join(SHELL.findall(page.read_text()))
    known = {p.name for p in entry_points(group="shoal.commands")}
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(COMMAND.findall(blocks)) <= known
    assert set(TARGET.findall(blocks)) <= targets


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [relative(p).removeprefix("docs/") for p in PAGES if relative(p).startswith("docs/")]
    assert [p for p in pages if p != "index.md" and f"({p})" not in index] == []


def test_the_fleet_reference_is_generated() -> None:
    from shoal_simulations.fleet_reference import reference

    assert (ROOT / "docs" / "fleet.md").read_text() == reference()


def test_every_target_has_a_sentence() -> None:
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in shown.splitlines()}
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert names == set(phony[1].split())
