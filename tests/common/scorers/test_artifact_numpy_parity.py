# SPDX-License-Identifier: Apache-2.0
"""The numpy fallback of an artifact against its ONNX graphs."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_common.observation import FC, FN, FP, FT, Observation
from shoal_common.policy import PolicyArtifact
from shoal_common.scorers.artifact import ArtifactScorer
from shoal_common.scorers.artifact_numpy import NumpyScorer, open_artifact

SHAPES = [(1, None), (3, None), (1, (0.5, 1.5)), (2, (0.25, 1.0))]


def artifact(folder: Path, profiles: int, bounds: tuple[float, float] | None) -> Path:
    import torch

    from shoal_common.nn.set_attention import SetActor

    torch.manual_seed(profiles)
    return PolicyArtifact.save(folder, SetActor(16, profiles, bounds), {"test": True}).directory


def observation(batch: int, nodes: int, profiles: int) -> Observation:
    rng = np.random.default_rng(nodes)

    def draw(*shape: int) -> Any:
        return rng.normal(0, 1, shape).astype(np.float32)

    mask = rng.random((batch, nodes, profiles)) < 0.7
    empty = np.zeros((batch, nodes, 0), np.float32)
    return Observation(
        draw(batch, nodes, FN), draw(batch, nodes, FP), draw(batch, FT), draw(batch, FC), draw(batch, 4),
        mask, empty,
    )  # fmt: skip


@pytest.mark.parametrize(("profiles", "bounds"), SHAPES)
def test_numpy_gives_what_the_graphs_give(
    tmp_path: Path, profiles: int, bounds: tuple[float, float] | None
) -> None:
    folder = artifact(tmp_path / "artifact", profiles, bounds)
    graphs, arrays = ArtifactScorer(folder), NumpyScorer(folder)
    for batch, nodes in ((1, 1), (2, 7), (1, 300)):
        obs = observation(batch, nodes, profiles)
        np.testing.assert_allclose(graphs.encode(obs.node), arrays.encode(obs.node), atol=2e-5)
        expected, found = graphs.score(obs), arrays.score(obs)
        np.testing.assert_allclose(expected.logits, found.logits, atol=5e-5)
        np.testing.assert_allclose(expected.quotas, found.quotas, atol=5e-5)
        assert found.logits.dtype == found.quotas.dtype == np.float32


def test_without_onnxruntime_numpy_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = artifact(tmp_path / "artifact", 1, None)
    assert isinstance(open_artifact(folder), ArtifactScorer)
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "onnxruntime":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert isinstance(open_artifact(folder), NumpyScorer)
