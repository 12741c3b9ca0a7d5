# SPDX-License-Identifier: Apache-2.0
"""The report renders from a synthetic summary: complete, self-contained, accessible."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from shoal_common.gate import Outcome
from shoal_simulations.comparison import compare
from shoal_simulations.report import html, print_comparison, privacy_sentence


def outcome(objective: float) -> Outcome:
    return Outcome(objective, 0.5, 12.3, 0.142, 280.0, 0.99, (objective / 2, -0.1, objective / 3, -0.02))


@pytest.fixture
def summary() -> dict[str, Any]:
    rows = {
        "default": [outcome(-0.40), outcome(-0.38), outcome(-0.42)],
        "most-allocated": [outcome(-0.36), outcome(-0.35), outcome(-0.36)],
        "federated": [outcome(-0.30), outcome(-0.29), outcome(-0.31)],
    }
    return {
        "fleet": "two <b>", "seed": 7, "engine": "in-process", "policy_row": "federated",
        "parameters_sha256": "ab" * 32, "epsilon": 1.25, "delta": 1e-5, "unit": "transition",
        "neighbouring": "add_remove", "target_epsilon": 2.5, "held_out_seeds": [9000, 9001, 9002],
        "progress": [{"round": r, "reward": 0.1 * r, "epsilon": 0.6 * r, "seconds": 1.5} for r in (1, 2)],
        "clusters": [{"name": n, "nodes": 24, "rows": compare(rows)} for n in ("left", "right")],
    }  # fmt: skip


class Audit(HTMLParser):
    """Collects what the page links to, its headings and its labels."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self.links += [v for k, v in attrs if k in {"src", "href"} and v and not v.startswith("#")]


def test_the_page_is_self_contained_and_accessible(summary: dict[str, Any]) -> None:
    page = html(summary)
    audit = Audit()
    audit.feed(page)
    tags = [tag for tag, _ in audit.seen]
    assert audit.links == []
    assert "script" not in tags
    assert tags.count("table") == tags.count("caption") == 2
    charts = [attrs for tag, attrs in audit.seen if tag == "svg"]
    assert len(charts) == 3 + 2 * 2
    assert all(chart.get("role") == "img" and chart.get("aria-label") for chart in charts)
    assert ("html", {"lang": "en"}) in audit.seen
    assert "prefers-color-scheme: dark" in page
    assert "two &lt;b&gt;" in page
    assert "<b>" not in page


def test_figures_are_well_formed_and_take_the_colour_of_the_page(summary: dict[str, Any]) -> None:
    page = html(summary)
    charts = [part.split("</svg>")[0] + "</svg>" for part in page.split("<figure>")[1:]]
    for chart in charts:
        ET.fromstring(chart)
        assert "currentColor" in chart
        assert "width=" not in chart.split(">", 1)[0]


def test_the_same_summary_gives_the_same_page(summary: dict[str, Any]) -> None:
    assert html(summary) == html(summary)


def test_the_table_has_a_row_for_every_scorer(summary: dict[str, Any]) -> None:
    out = io.StringIO()
    print_comparison(summary, Console(file=out, width=160))
    text = out.getvalue()
    assert text.count("most-allocated") == 2
    assert "14.2" in text  # SLA missed, %
    assert "epsilon 1.25 at delta 1e-05, unit one transition" in text


def test_a_run_without_privacy_says_so(summary: dict[str, Any]) -> None:
    summary["epsilon"] = None
    assert privacy_sentence(summary).startswith("No differential privacy")
    for row in summary["progress"]:
        row["epsilon"] = None
    assert "Epsilon by round" not in html(summary)


def test_names_are_shown_as_they_are(summary: dict[str, Any]) -> None:
    summary["clusters"][0]["name"] = "[/x]"
    summary["clusters"][0]["rows"]["[bold]"] = summary["clusters"][0]["rows"]["default"]
    out = io.StringIO()
    print_comparison(summary, Console(file=out, width=160))
    assert "[/x], 24 nodes" in out.getvalue()
    assert "[bold]" in out.getvalue()


def test_few_rounds_have_whole_numbers_below_them(summary: dict[str, Any]) -> None:
    summary["progress"] = summary["progress"][:1]
    assert "0.975" not in html(summary)
