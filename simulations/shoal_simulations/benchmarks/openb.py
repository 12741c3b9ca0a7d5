# SPDX-License-Identifier: Apache-2.0
"""Parity with the published openb results, column by column, and the speed of the replay.

Published: analysis_allo_discrete.csv and analysis_frag_discrete.csv of the simulator of Weng, Yang et al.,
"Beware of Fragmentation", USENIX ATC'23; go_order.npz holds its pod and node orders. Random is left out: its
draws are Go's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from shoal_common.errors import InputError
from shoal_simulations import openb
from shoal_simulations.traces.base import NodeTrace, PodTrace, table
from shoal_simulations.traces.openb import read_nodes, read_pods

PUBLISHED_NAMES = {
    "dotprod": "02-DotProd",
    "gpuclustering": "03-GpuClustering",
    "gpupacking": "04-GpuPacking",
    "bestfit": "05-BestFit",
    "fgd": "06-FGD",
}
TOLERANCE = 0.005
QUICK_KEYS = ("default_42", "gpuspec33_42")
PEER_PODS_PER_S = 18.0
"""The Go simulator by its README: about 10 minutes for one experiment of 10,866 pods on 2 vCPU."""

Published = dict[tuple[str, str, str], dict[str, float]]


def read_published(path: Path) -> Published:
    """One of the published tables: (workload, policy, seed) -> column -> %.

    Raises:
        InputError: a bad row.
    """
    columns = [str(c) for c in range(131)]
    result: Published = {}
    for row in table(path, ["workload", "sc_policy", "seed", *columns]):
        workload = row.text("workload").removeprefix("openb_pod_list_")
        cells = {c: row.number(c) for c in columns}
        result[workload, row.text("sc_policy"), row.text("seed")] = cells
    return result


def orders(path: Path) -> list[str]:
    """The keys (`<workload>_<seed>`) of an order file.

    Raises:
        InputError: the file is missing.
    """
    if not path.is_file():
        raise InputError(str(path), "file", "does not exist", "check the folder")
    with np.load(path) as archive:
        return sorted(name.removesuffix("_pods") for name in archive.files if name.endswith("_pods"))


def run(
    nodes_dir: Path | None = None, expected_dir: Path | None = None, quick: bool = False
) -> dict[str, Any]:
    """Replay every (workload, seed) that has an order under every deterministic policy and compare.

    Args:
        nodes_dir: folder with openb_node_list_gpu_node.csv and the pod lists; default $SHOAL_DATA/openb.
        expected_dir: folder with the two published tables and go_order.npz; default
            $SHOAL_DATA/fgd_expected.
        quick: only QUICK_KEYS.

    Raises:
        InputError: a folder is neither given nor found, or a file is broken.
    """
    nodes_dir, expected_dir = nodes_dir or _data("openb"), expected_dir or _data("fgd_expected")
    cells = list(compare(nodes_dir, expected_dir, QUICK_KEYS if quick else None))
    speed = {p: median(c["pods_per_s"] for c in cells if c["policy"] == p) for p in PUBLISHED_NAMES}
    return {
        "cells": cells,
        "total": len(cells),
        "equal": sum(c["equal"] for c in cells),
        "max_abs_diff": max(c["allocation_max_abs_diff"] for c in cells),
        "pods_per_s": speed,
        "peer": {"name": "openb simulator (Go, 2 vCPU)", "pods_per_s": PEER_PODS_PER_S},
        "ratio": speed["fgd"] / PEER_PODS_PER_S,
    }


def _data(folder: str) -> Path:
    """A folder of the traces' folder.

    Raises:
        InputError: SHOAL_DATA is not set.
    """
    base = os.environ.get("SHOAL_DATA")
    if not base:
        raise InputError("SHOAL_DATA", folder, "is not set", "point it to the folder that holds the traces")
    return Path(base) / folder


def compare(
    nodes_dir: Path, expected_dir: Path, keys: tuple[str, ...] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield each cell: its figures and the largest differences from the published columns.

    Raises:
        InputError: a file is missing or broken.
    """
    allocation = read_published(expected_dir / "analysis_allo_discrete.csv")
    fragmentation = read_published(expected_dir / "analysis_frag_discrete.csv")
    nodes = read_nodes(nodes_dir / "openb_node_list_gpu_node.csv")
    order_file = expected_dir / "go_order.npz"
    for key in orders(order_file) if keys is None else keys:
        workload, seed = key.rsplit("_", 1)
        pods = read_pods(nodes_dir / f"openb_pod_list_{workload}.csv")
        order = openb.load_order(order_file, key, nodes, pods)
        for policy, name in PUBLISHED_NAMES.items():
            cell = (workload, name, seed)
            yield {"workload": workload, "seed": int(seed), "policy": policy} | _compare_cell(
                (nodes, pods, order), policy, allocation[cell], fragmentation[cell]
            )


def _compare_cell(
    problem: tuple[NodeTrace, PodTrace, openb.Order],
    policy: str,
    allocation: dict[str, float],
    fragmentation: dict[str, float],
) -> dict[str, Any]:
    result = openb.replay(openb.prepare(*problem), policy)
    allocated, fragmented = openb.columns(result)
    difference = max(abs(allocated[c] - allocation[c]) for c in allocation)
    return {
        "pods": len(result.node),
        "pods_per_s": len(result.node) / result.seconds,
        "allocation_130": allocated["130"],
        "allocation_max_abs_diff": difference,
        "fragmentation_max_abs_diff": max(abs(fragmented[c] - fragmentation[c]) for c in fragmentation),
        "equal": difference <= TOLERANCE,
    }
