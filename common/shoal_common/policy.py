# SPDX-License-Identifier: Apache-2.0
"""PolicyArtifact: a trained policy as a directory that can be checked, shown and served.

    policy.safetensors   the actor's parameters, float32
    encoder.onnx         node features -> tokens
    head.onnx            tokens and the decision -> logits, quotas
    manifest.json        versions, schema hash, shape, provenance, privacy, digest, a slot for a signature

Reading and serving import no torch; `save` and `actor` do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from shoal_common import __version__
from shoal_common.errors import InputError
from shoal_common.observation import ACTION_VERSION, F32, FEATURE_VERSION, schema_hash
from shoal_common.reward import REWARD_VERSION
from shoal_common.scorers.artifact import (
    ENCODER,
    FORMAT,
    HEAD,
    MANIFEST,
    WEIGHTS,
    ArtifactScorer,
    Manifest,
    digest,
    read_manifest,
)

if TYPE_CHECKING:
    from shoal_common.nn.set_attention import SetActor


class Privacy(TypedDict):
    """What the training guarantees: of one cluster's ledger, the worst of the fleet."""

    epsilon: float
    delta: float
    unit: str
    neighbouring: str
    simulation: bool  # True: simulated noise, no guarantee


@dataclass(frozen=True, slots=True)
class PolicyArtifact:
    """A verified artifact on disk."""

    directory: Path
    manifest: Manifest

    @classmethod
    def save(
        cls,
        directory: Path,
        actor: SetActor,
        provenance: Mapping[str, Any],
        privacy: Privacy | None = None,
    ) -> PolicyArtifact:
        """Write an actor as an artifact; takes seconds, since it exports the graphs.

        `provenance` says where the policy comes from (fleet, rounds, seed, learner), as plain JSON; `privacy`
        None means that it was trained without.

        Raises:
            InputError: a parameter is not finite; such a policy would abstain from every decision.
        """
        from safetensors.numpy import save_file

        from shoal_common.nn.export import export_onnx

        arrays = {name: value.detach().numpy() for name, value in actor.state_dict().items()}
        odd = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if odd:
            problem = f"{odd[0]} is not finite ({len(odd)} of {len(arrays)} arrays)"
            raise InputError("policy", "parameters", problem, "save a policy of an earlier round")
        directory.mkdir(parents=True, exist_ok=True)
        save_file(arrays, directory / WEIGHTS)
        export_onnx(actor, directory / ENCODER, directory / HEAD)
        manifest = _describe(actor, arrays, provenance, privacy)
        manifest["digest"] = digest(directory, manifest)
        manifest["signature"] = None
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        return cls(directory, manifest)

    @classmethod
    def load(cls, directory: Path) -> PolicyArtifact:
        """Open and verify an artifact.

        Raises:
            InputError: not an artifact, or a byte changed.
            SchemaMismatch: other feature tables, reward or action codings.
        """
        return cls(directory, read_manifest(directory))

    def scorer(self) -> ArtifactScorer:
        """The policy by onnxruntime, without torch."""
        return ArtifactScorer(self.directory)

    def arrays(self) -> dict[str, F32]:
        """The actor's parameters by name."""
        from safetensors.numpy import load_file

        return dict(load_file(self.directory / WEIGHTS))

    def actor(self) -> SetActor:
        """The policy as a torch module."""
        import torch

        from shoal_common.nn.set_attention import SetActor

        bounds = self.manifest["quota_bounds"]
        actor = SetActor(
            self.manifest["width"], self.manifest["profiles"], None if bounds is None else tuple(bounds)
        )
        actor.load_state_dict({name: torch.from_numpy(array) for name, array in self.arrays().items()})
        return actor


def privacy_statement(manifest: Manifest) -> str:
    """The guarantee in one sentence."""
    privacy = manifest["privacy"]
    if privacy is None:
        return "trained without differential privacy"
    text = (
        f"epsilon {privacy['epsilon']:.3g} at delta {privacy['delta']:.1e}, unit: one {privacy['unit']}, "
        f"neighbours by {privacy['neighbouring'].replace('_', '/')}"
    )
    return f"{text}; simulated noise: not a guarantee" if privacy["simulation"] else text


def _describe(
    actor: SetActor, arrays: Mapping[str, F32], provenance: Mapping[str, Any], privacy: Privacy | None
) -> Manifest:
    head = actor.head
    bounds = None if head.quota is None else [head.low, head.high]
    counts = {
        part: sum(array.size for name, array in arrays.items() if name.startswith(f"{part}."))
        for part in ("encoder", "head")
    }
    return {
        "format": FORMAT,
        "shoal_version": __version__,
        "schema_hash": schema_hash(),
        "feature_version": FEATURE_VERSION,
        "reward_version": REWARD_VERSION,
        "action_version": ACTION_VERSION,
        "network": "set_attention",
        "width": actor.encoder.second.out_features,
        "profiles": head.trunk.profiles,
        "quota_bounds": bounds,
        "parameters": counts,
        "provenance": dict(provenance),
        "privacy": None if privacy is None else dict(privacy),
    }
