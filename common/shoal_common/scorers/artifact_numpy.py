# SPDX-License-Identifier: Apache-2.0
"""The same artifact by numpy alone, for machines that onnxruntime does not run on; and which of both it is.

The forward pass of `shoal_common.nn.set_attention` on the artifact's parameters. A test holds it equal to the
ONNX graphs within float32 rounding.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import final

import numpy as np

from shoal_common.observation import F32, Observation
from shoal_common.scorers.artifact import WEIGHTS, ArtifactScorer, Manifest, read_manifest
from shoal_common.scorers.base import Scores

MASKED = np.float32(-1e9)


def open_artifact(directory: Path) -> ArtifactScorer | NumpyScorer:
    """An artifact by onnxruntime, by numpy where that is not installed.

    Raises:
        InputError, SchemaMismatch: the artifact does not verify.
    """
    try:
        return ArtifactScorer(directory)
    except ImportError:
        return NumpyScorer(directory)


@final
class NumpyScorer:
    """Scores by an artifact's parameters."""

    def __init__(self, directory: Path) -> None:
        from safetensors.numpy import load_file

        self.manifest: Manifest = read_manifest(directory)
        self._p: dict[str, F32] = load_file(directory / WEIGHTS)
        self._bounds = self.manifest["quota_bounds"]

    def encode(self, node: F32) -> F32:
        """Encode nodes [B, N, FN] into tokens [B, N, d]."""
        return _relu(
            self._linear("encoder.second", _relu(self._linear("encoder.first", node.astype(np.float32))))
        )

    def score(self, obs: Observation) -> Scores:
        """Score a batch of observations."""
        return self.score_tokens(self.encode(obs.node), obs)

    def score_tokens(self, tokens: F32, obs: Observation) -> Scores:
        """Score with tokens [B, N, d] that were encoded before."""
        query = _relu(self._linear("head.attention.query", np.concatenate([obs.task, obs.ctx, obs.w], -1)))
        key = self._linear("head.attention.key", query)
        match = (tokens @ key[..., None])[..., 0] / np.float32(math.sqrt(key.shape[-1]))
        weight = _softmax(np.where(obs.mask.any(-1), match, MASKED))
        found = (weight[:, None] @ tokens)[:, 0]
        context = np.concatenate([query, found], -1) @ self._p["head.trunk.context.weight"].T
        candidate = self._linear("head.trunk.candidate", np.concatenate([tokens, obs.pair], -1))
        mixed = (candidate + context[:, None])[:, :, None]
        if "head.trunk.profile.weight" in self._p:
            mixed = mixed + self._p["head.trunk.profile.weight"]
        hidden = _relu(self._linear("head.trunk.hidden", _relu(mixed)))
        logits = self._linear("head.logit", hidden)[..., 0]
        return Scores(logits, self._quotas(hidden, logits))

    def _quotas(self, hidden: F32, logits: F32) -> F32:
        if self._bounds is None:
            return np.ones((*logits.shape, 2), np.float32)
        low, high = (np.float32(bound) for bound in self._bounds)
        tanh: F32 = np.tanh(self._linear("head.quota", hidden))
        return low + np.float32(0.5) * (high - low) * (1 + tanh)

    def _linear(self, name: str, values: F32) -> F32:
        out: F32 = values @ self._p[f"{name}.weight"].T + self._p[f"{name}.bias"]
        return out


def _relu(values: F32) -> F32:
    positive: F32 = np.maximum(values, np.float32(0))
    return positive


def _softmax(logits: F32) -> F32:
    weight: F32 = np.exp(logits - logits.max(-1, keepdims=True))
    policy: F32 = weight / weight.sum(-1, keepdims=True)
    return policy
