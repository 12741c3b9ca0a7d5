# SPDX-License-Identifier: Apache-2.0
"""The result of a run for people: a table in the terminal and one HTML page that needs no network.

Both are made from the document of `summary.json` alone (docs/simulate.md describes it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from shoal_common.reward import TERMS
from shoal_simulations import figures
from shoal_simulations.comparison import DEFAULT, gains_against

COLUMNS = (  # metric, title on the page, title in a terminal, factor, digits
    ("utilisation", "utilisation %", "util", 100.0, 1),
    ("p99_latency_seconds", "P99 latency s", "P99 s", 1.0, 0),
    ("sla_violations", "SLA missed %", "SLA-", 100.0, 1),
    ("power_watts_per_node", "W per node", "W", 1.0, 0),
    ("success_rate", "success %", "done", 100.0, 1),
    ("objective", "J", "J", 1.0, 3),
)


LEGEND = (
    "Means over held-out arrivals. util, SLA- (violated), done (success): %; W: power a node; J: composite, "
    "at most 0, larger is better; its gain over kube-scheduler's default is paired by seed."
)


def _spread(value: Mapping[str, float], digits: int = 1) -> str:
    """A mean with its interval, as text."""
    return f"{value['mean']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [f"{row[key]['mean'] * factor:.{digits}f}" for key, _, _, factor, digits in COLUMNS]
    return [*cells, _spread(row["gain_percent"])]


def privacy_sentence(summary: Mapping[str, Any]) -> str:
    """What the run's privacy guarantee is, or that there is none."""
    if summary["epsilon"] is None:
        return "No differential privacy: nothing in this run bounds what an update says about one decision."
    return (
        f"Differential privacy: epsilon {summary['epsilon']:.2f} at delta {summary['delta']:g}, unit one "
        f"{summary['unit']} (neighbours by {summary['neighbouring'].replace('_', ' or ')}), simulation noise."
    )


def print_comparison(summary: Mapping[str, Any], console: Console) -> None:
    """Print one table per cluster, the policy's row in bold, then the privacy in one sentence."""
    for cluster in summary["clusters"]:
        title = f"{cluster['name']}, {cluster['nodes']} nodes"
        table = Table(
            title=escape_markup(title),
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        table.add_column("scorer", no_wrap=True)
        for _, _, short, _, _ in COLUMNS:
            table.add_column(short, justify="right", no_wrap=True)
        table.add_column("gain % [95 %]", justify="right", no_wrap=True)
        for name, row in cluster["rows"].items():
            table.add_row(
                escape_markup(name), *_cells(row), style="bold" if name == summary["policy_row"] else None
            )
        console.print(table)
    console.print(LEGEND)
    console.print(privacy_sentence(summary), markup=False)


STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --line: #c9c9c9; --mark: #eaf2ff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --paper: #16181c; --line: #454a52; --mark: #1f2d47; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 74rem; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .5rem 0; max-width: calc(100vw - 2rem); }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right;
  white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
tr.policy, tr.policy th { background: var(--mark); font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem;
  margin-top: 1rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; max-width: 34rem; }
code { overflow-wrap: anywhere; }
"""


def html(summary: Mapping[str, Any]) -> str:
    """The page: self-contained, readable at 320 px, in light and in dark."""
    title = f"Shoal: federation of {escape(summary['fleet'])}"
    body = "".join([_introduction(summary), *(_cluster(c, summary) for c in summary["clusters"])])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"{body}</main>\n</body>\n</html>\n"
    )


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>\n"


def _introduction(summary: Mapping[str, Any]) -> str:
    """What was run, under which privacy, and how the rounds went."""
    rounds: Sequence[Mapping[str, Any]] = summary["progress"]
    parts = [
        f"<p>{len(summary['clusters'])} virtual clusters, {len(rounds)} round(s), seed {summary['seed']}, "
        f"engine {escape(summary['engine'])}. Compared on {len(summary['held_out_seeds'])} held-out arrival "
        "seeds per cluster; gains are paired by seed with 95 % intervals.</p>\n",
        f"<p>{escape(privacy_sentence(summary))}</p>\n",
        f"<p>Parameters <code>sha256:{summary['parameters_sha256']}</code></p>\n",
        '<h2>Rounds</h2>\n<div class="figures">\n',
    ]
    rewards = [r["reward"] for r in rounds if r["reward"] is not None]
    if rewards:
        svg = figures.line_by_round(
            rewards, "J", "Composite J of the global model on validation arrivals, by round"
        )
        parts.append(_figure(svg, "J of the global model on validation arrivals, by round"))
    epsilons = [r["epsilon"] for r in rounds if r["epsilon"] is not None]
    if epsilons:
        svg = figures.line_by_round(epsilons, "epsilon", "Epsilon by round", summary["target_epsilon"])
        parts.append(_figure(svg, "Epsilon by round, the largest of the clusters"))
    seconds = [r["seconds"] for r in rounds]
    parts.append(_figure(figures.bars_by_round(seconds, "s", "Seconds per round"), "Seconds per round"))
    return "".join([*parts, "</div>\n"])


def _cluster(cluster: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """One cluster: its table, the gains of the policy over every row, the terms."""
    name, policy = cluster["name"], summary["policy_row"]
    against = gains_against(cluster["rows"], policy)
    gains = figures.gains(against, f"Gain of {policy} over each row in cluster {name}, with 95 % intervals")
    shown = {row: [cluster["rows"][row]["terms"][t]["mean"] for t in TERMS] for row in (DEFAULT, policy)}
    terms = figures.terms(shown, f"Reward terms of {DEFAULT} and {policy} in cluster {name}")
    return (
        f"<h2>Cluster {escape(name)}</h2>\n{_table(cluster, policy)}"
        f'<div class="figures">\n{_figure(gains, f"Gain of {policy} over each row, %; right is better")}'
        f"{_figure(terms, 'Reward terms; nearer to 0 is better')}</div>\n"
    )


def _table(cluster: Mapping[str, Any], policy: str) -> str:
    titles = ["scorer", *(title for _, title, *_ in COLUMNS), "gain % [95 %]"]
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    rows = []
    for name, row in cluster["rows"].items():
        cells = "".join(f"<td>{cell}</td>" for cell in _cells(row))
        mark = ' class="policy"' if name == policy else ""
        rows.append(f'<tr{mark}><th scope="row">{escape(name)}</th>{cells}</tr>\n')
    label = f"Table of cluster {escape(cluster['name'])}"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table>\n<caption>{cluster['nodes']} nodes; means over held-out seeds</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table></div>\n"
    )
