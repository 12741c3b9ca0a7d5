# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the informer's state on a small cluster: its figures are there and its sums are right."""

from __future__ import annotations

import pytest

from shoal_simulations.benchmarks import informer


def test_the_figures_of_a_small_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("NODES", 100), ("PODS", 200), ("RANDOM_EVENTS", 1000)):
        monkeypatch.setattr(informer, name, size)
    figures = informer.run()
    assert (figures["nodes"], figures["pods"], figures["random_events"]) == (100, 200, 1000)
    assert figures["random_events_differences"] == 0
    assert figures["relist_seconds"] < figures["list_seconds"]
    assert all(figures[name] > 0 for name in ("heartbeat_microseconds", "pod_events_per_second"))
