# SPDX-License-Identifier: Apache-2.0
"""Observations and sampled decisions as tensors, in the one order in which every network takes them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal_common.observation import F32


class Seen(Protocol):
    """What an Observation and a sampled decision have in common."""

    @property
    def node(self) -> F32:
        """[M, K, FN]."""

    @property
    def pair(self) -> F32:
        """[M, K, FP]."""

    @property
    def task(self) -> F32:
        """[M, FT]."""

    @property
    def ctx(self) -> F32:
        """[M, FC]."""

    @property
    def w(self) -> F32:
        """[M, 4]."""

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """[M, K, P]."""


class Inputs(NamedTuple):
    """The same as tensors."""

    node: Tensor  # [M, K, FN]
    pair: Tensor  # [M, K, FP]
    task: Tensor  # [M, FT]
    ctx: Tensor  # [M, FC]
    w: Tensor  # [M, 4]
    mask: Tensor  # [M, K, P]


def inputs(seen: Seen) -> Inputs:
    """View decisions or observations as tensors, without a copy where they are contiguous float32."""
    return Inputs(
        _tensor(seen.node),
        _tensor(seen.pair),
        _tensor(seen.task),
        _tensor(seen.ctx),
        _tensor(seen.w),
        torch.from_numpy(np.ascontiguousarray(seen.mask)),
    )


def _tensor(array: F32) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
