# SPDX-License-Identifier: Apache-2.0
"""An actor as two ONNX graphs, encoder and head, with the number of decisions and of nodes left open.

Two graphs, since a token depends on its node alone: a server re-encodes the nodes that changed and runs the
head for every pod. Export takes seconds and happens only where an artifact is saved.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from shoal_common.nn.set_attention import OBJECTIVES, SetActor
from shoal_common.observation import FC, FN, FP, FT

HEAD_INPUTS = ("tokens", "pair", "task", "ctx", "w", "mask")
HEAD_OUTPUTS = ("logits", "quotas")


def export_onnx(actor: SetActor, encoder: Path, head: Path) -> None:
    """Write both graphs: node [B, N, FN] -> tokens [B, N, d], and HEAD_INPUTS -> HEAD_OUTPUTS."""
    width, profiles = actor.encoder.second.out_features, actor.head.trunk.profiles
    b, n = 2, 3  # any sizes other than 1, which export would take for constants
    node = torch.zeros(b, n, FN)
    _export(actor.encoder, (node,), encoder, ("node",), ("tokens",))
    inputs = (
        torch.zeros(b, n, width),
        torch.zeros(b, n, FP),
        torch.zeros(b, FT),
        torch.zeros(b, FC),
        torch.zeros(b, OBJECTIVES),
        torch.ones(b, n, profiles, dtype=torch.bool),
    )
    _export(actor.head, inputs, head, HEAD_INPUTS, HEAD_OUTPUTS)


def _export(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    names: tuple[str, ...],
    outputs: tuple[str, ...],
) -> None:
    batch, nodes = torch.export.Dim("batch"), torch.export.Dim("nodes")
    shapes = tuple({0: batch, 1: nodes} if tensor.dim() == 3 else {0: batch} for tensor in inputs)
    with _quiet():
        torch.onnx.export(
            module,
            inputs,
            str(path),
            input_names=list(names),
            output_names=list(outputs),
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallow what the exporter prints and warns; its errors still raise."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    sink = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
