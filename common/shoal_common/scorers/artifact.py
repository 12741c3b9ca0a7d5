# SPDX-License-Identifier: Apache-2.0
"""A policy artifact as a scorer: numpy in, numpy out, by onnxruntime; nothing here imports torch.

The directory holds policy.safetensors, encoder.onnx, head.onnx and manifest.json. What is read is checked:
the digest over files and manifest, the versions, and the hash of the feature tables.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from shoal_common.errors import InputError, SchemaMismatch
from shoal_common.observation import F32, Observation, schema_hash
from shoal_common.scorers.base import Scores

FORMAT = 1
WEIGHTS, ENCODER, HEAD, MANIFEST = "policy.safetensors", "encoder.onnx", "head.onnx", "manifest.json"
FILES = (WEIGHTS, ENCODER, HEAD)

Manifest = dict[str, Any]


def digest(directory: Path, manifest: Manifest) -> str:
    """sha256 over the files' own digests and the manifest without its digest and signature."""
    content = {key: value for key, value in manifest.items() if key not in ("digest", "signature")}
    whole = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    for name in FILES:
        whole.update(hashlib.sha256((directory / name).read_bytes()).digest())
    return whole.hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Read and verify an artifact's manifest.

    Raises:
        InputError: it is not an artifact, a file is missing, or a byte differs from what was saved.
        SchemaMismatch: it was trained on other feature tables, reward or action codings.
    """
    missing = [name for name in (MANIFEST, *FILES) if not (directory / name).is_file()]
    if missing:
        raise InputError(str(directory), missing[0], "is missing", "give the directory of a policy artifact")
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        stated, version, schema = manifest["digest"], manifest["format"], str(manifest["schema_hash"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = "save the policy again"
        problem = f"is not a manifest ({type(error).__name__}: {error})"
        raise InputError(str(directory), MANIFEST, problem, remedy) from error
    if stated != digest(directory, manifest):
        remedy = "fetch or save it again; do not serve it"
        raise InputError(str(directory), "digest", "does not match: a byte of the artifact changed", remedy)
    if version != FORMAT:
        raise SchemaMismatch(f"{directory}: artifact format {version}, here {FORMAT}")
    if schema != schema_hash():
        raise SchemaMismatch(
            f"{directory}: feature schema {schema[:12]}, here {schema_hash()[:12]}: train again"
        )
    return dict(manifest)


class ArtifactScorer:
    """Scores by the two graphs of an artifact, on one thread."""

    def __init__(self, directory: Path) -> None:
        import onnxruntime

        self.manifest = read_manifest(directory)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; onnxruntime warns about the machine it finds
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(str(directory / ENCODER), options, providers=providers)
        self._head = onnxruntime.InferenceSession(str(directory / HEAD), options, providers=providers)

    def encode(self, node: F32) -> F32:
        """Encode nodes [B, N, FN] into tokens [B, N, d], which hold until the node changes."""
        (tokens,) = self._encoder.run(["tokens"], {"node": np.ascontiguousarray(node, np.float32)})
        return np.asarray(tokens, np.float32)

    def score(self, obs: Observation) -> Scores:
        """Score a batch of observations."""
        return self.score_tokens(self.encode(obs.node), obs)

    def score_tokens(self, tokens: F32, obs: Observation) -> Scores:
        """Score with tokens that were encoded before."""
        feed = {
            "tokens": tokens,
            "pair": np.ascontiguousarray(obs.pair, np.float32),
            "task": np.ascontiguousarray(obs.task, np.float32),
            "ctx": np.ascontiguousarray(obs.ctx, np.float32),
            "w": np.ascontiguousarray(obs.w, np.float32),
            "mask": np.ascontiguousarray(obs.mask),
        }
        logits, quotas = self._head.run(["logits", "quotas"], feed)
        return Scores(logits, quotas)
