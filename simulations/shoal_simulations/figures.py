# SPDX-License-Identifier: Apache-2.0
"""Figures of a report as inline SVG: text and axes take the page's colour, in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal_common.gate import Interval
from shoal_common.reward import TERMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"  # stands for the page's text colour until the figure is written
COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#d946ef", "#ef4444")  # readable on white and on near-black
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def _figure(draw: Callable[[Axes], None], title: str, height: float = 2.6) -> str:
    """Run `draw` on a fresh figure and return accessible inline SVG; `title` is its text alternative."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(4.6, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _by_round(axes: Axes, label: str, rounds: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, rounds + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel(label)


def line_by_round(values: Sequence[float], label: str, title: str, target: float | None = None) -> str:
    """A line over rounds 1, 2, ...; `target` adds a dashed line."""

    def draw(axes: Axes) -> None:
        rounds = range(1, len(values) + 1)
        axes.plot(rounds, values, color=COLOURS[0], marker="o", markersize=2.5)
        if target is not None:
            axes.axhline(target, color=COLOURS[1], linestyle="--", label=f"target {target:g}")
            axes.legend()
        _by_round(axes, label, len(values))

    return _figure(draw, title)


def bars_by_round(values: Sequence[float], label: str, title: str) -> str:
    """One bar a round."""

    def draw(axes: Axes) -> None:
        axes.bar(range(1, len(values) + 1), values, color=COLOURS[0])
        _by_round(axes, label, len(values))

    return _figure(draw, title)


def gains(against: Mapping[str, Interval], title: str) -> str:
    """Gain in percent over each baseline with its 95 % interval; right of the line is better."""

    def draw(axes: Axes) -> None:
        names = list(against)
        means = [against[name].mean for name in names]
        errors = [
            [against[n].mean - against[n].low for n in names],
            [against[n].high - against[n].mean for n in names],
        ]
        axes.errorbar(means, range(len(names)), xerr=errors, fmt="o", color=COLOURS[0], capsize=3)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.margins(y=0.1)
        axes.invert_yaxis()
        axes.set_xlabel("gain over the row, %")

    return _figure(draw, title, height=1.0 + 0.28 * len(against))


def terms(rows: Mapping[str, Sequence[float]], title: str) -> str:
    """The four reward terms side by side for some rows; nearer to 0 is better."""

    def draw(axes: Axes) -> None:
        width = 0.8 / len(rows)
        for i, (name, values) in enumerate(rows.items()):
            places = [t + (i - (len(rows) - 1) / 2) * width for t in range(len(TERMS))]
            axes.bar(places, values, width, label=name, color=COLOURS[i % len(COLOURS)])
        axes.set_xticks(range(len(TERMS)), TERMS)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_ylabel("time mean")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(rows))

    return _figure(draw, title)
