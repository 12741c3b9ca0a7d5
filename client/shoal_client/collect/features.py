# SPDX-License-Identifier: Apache-2.0
"""The table of named live features: every one with unit, bound, source, query and greatest age.

`python -m shoal_client.collect.features` prints the table of docs/collectors.md.
"""

from __future__ import annotations

from typing import Final

from shoal_client.collect.cluster_features import CLUSTER_QUERIES
from shoal_client.collect.gpu_features import GPU_QUERIES
from shoal_client.collect.node_features import NODE_QUERIES, one
from shoal_client.collect.queries import AGENT, LiveFeature, Query


def _quantile(name: str, quantile: float, metric: str, doc: str) -> Query:
    promql = (
        f"histogram_quantile({quantile}, sum by (le, $on) (rate(shoal_ebpf_{metric}_seconds_bucket[$w])))"
    )
    return one(name, "seconds", 60.0, promql, doc, AGENT)


AGENT_QUERIES: Final = (
    _quantile("run_queue_p50", 0.5, "run_queue", "median wait of a runnable task for a core"),
    _quantile("run_queue_p99", 0.99, "run_queue", "99th percentile of that wait"),
    _quantile("block_io_p50", 0.5, "block_io", "median time of a request at a disk"),
    _quantile("block_io_p99", 0.99, "block_io", "99th percentile of that time"),
    _quantile("tcp_rtt_p50", 0.5, "tcp_rtt", "median round trip of TCP"),
    _quantile("tcp_rtt_p99", 0.99, "tcp_rtt", "99th percentile of that round trip"),
    one(
        "tcp_retransmits",
        "1/s",
        1e6,
        "sum by ($on) (rate(shoal_ebpf_tcp_retransmits_total[$w]))",
        "TCP segments sent again",
        AGENT,
    ),
)

QUERIES: Final[tuple[Query, ...]] = NODE_QUERIES + CLUSTER_QUERIES + GPU_QUERIES + AGENT_QUERIES
LIVE_FEATURES: Final[tuple[LiveFeature, ...]] = tuple(f for q in QUERIES for f in q.features)
OVER_GPUS: Final = {
    "mean": "mean over GPUs, instances by their slices",
    "share": "mean over GPUs, instances by their slices",
    "max": "largest of the GPUs",
    "min": "smallest of the GPUs",
    "sum": "sum over GPUs",
    "sum_instances": "sum over GPUs and instances",
}
COLUMN: Final = {feature.name: column for column, feature in enumerate(LIVE_FEATURES)}


def reference() -> str:
    """The feature table as Markdown, one row per feature."""
    lines = ["| # | feature | unit | bounds | exporter | oldest | what |", "|---|---|---|---|---|---|---|"]
    for query in QUERIES:
        for f in query.features:
            bounds, source = f"{f.low:g} to {f.high:g}", query.source
            over = "" if f.reduce == "one" else f" ({OVER_GPUS[f.reduce]})"
            cells = (
                f"`{f.name}`",
                f.unit,
                bounds,
                source.exporter,
                f"{source.max_age_seconds:g} s",
                f.doc + over,
            )
            lines.append(f"| {COLUMN[f.name] + 1} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def query_reference() -> str:
    """The queries as Markdown, as they are sent (window of rates: 120 s)."""
    lines = ["| features | PromQL |", "|---|---|"]
    for query in QUERIES:
        names = ", ".join(f"`{f.name}`" for f in query.features)
        lines.append(f"| {names} | `{query.promql.replace('|', chr(92) + '|')}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference() + "\n" + query_reference(), end="")
