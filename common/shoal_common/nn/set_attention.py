# SPDX-License-Identifier: Apache-2.0
"""Set attention: networks that score any number of nodes, equivariant under their permutation.

A node becomes a token from its own features alone (`NodeEncoder`), so a served token is re-encoded only when
its node changes. What concerns the pod enters in the head: the pod's query attends over the tokens of the
feasible nodes (one head; keys and values are the tokens themselves), and each candidate's output is an MLP of
its token, its pair features, the query and what the query attended to.

The attention is a softmax-weighted mean, never a sum or a maximum: a network trained on K sampled candidates
sees the same statistic when it serves all N. (Cross-attention scoring of a set: Kool et al. 2019,
arXiv:1803.08475; here with a mask and without positions.)

Only Linear and Embedding layers with the batch dimension first, so that Opacus' per-sample gradients hold.
Legend: M samples, N nodes or K sampled candidates, P profiles per node, d width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal_common.observation import FC, FN, FP, FT

OBJECTIVES = 4
MASKED = -1e9  # finite, so that an empty mask gives a finite softmax; exp(MASKED) is exactly 0


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over all candidates of a sample: logits [M, N, P], mask [M, N, P] -> pi [M, N, P]."""
    flat = logits.masked_fill(~mask, MASKED).flatten(1)
    return functional.softmax(flat, dim=1).view_as(logits)


class NodeEncoder(nn.Module):
    """Node features [..., N, FN] -> tokens [..., N, d]; the encoder graph of an artifact."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(FN, width)
        self.second = nn.Linear(width, width)

    def forward(self, node: Tensor) -> Tensor:
        """Encode each node by itself."""
        return functional.relu(self.second(functional.relu(self.first(node))))


class TaskContext(nn.Module):
    """The pod's query and what it finds among the feasible nodes: [M, 2d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(FT + FC + OBJECTIVES, width)
        self.key = nn.Linear(width, width)
        self.scale = width**-0.5

    def forward(self, tokens: Tensor, task: Tensor, ctx: Tensor, w: Tensor, feasible: Tensor) -> Tensor:
        """Attend: tokens [M, N, d], task [M, FT], ctx [M, FC], w [M, 4], feasible bool[M, N]."""
        query = functional.relu(self.query(torch.cat([task, ctx, w], dim=-1)))  # [M, d]
        match = torch.matmul(tokens, self.key(query).unsqueeze(-1)).squeeze(-1) * self.scale  # [M, N]
        weight = functional.softmax(match.masked_fill(~feasible, MASKED), dim=-1)
        found = torch.matmul(weight.unsqueeze(1), tokens).squeeze(1)  # [M, d]
        return torch.cat([query, found], dim=-1)


class CandidateTrunk(nn.Module):
    """Two hidden layers per candidate: [M, N, P, d]. With quotas, each candidate sees its own alone."""

    def __init__(self, width: int, profiles: int, quotas: bool) -> None:
        super().__init__()
        self.candidate = nn.Linear(width + FP, width)
        self.context = nn.Linear(2 * width, width, bias=False)
        self.profile = nn.Embedding(profiles, width) if profiles > 1 else None
        self.quota = nn.Linear(2, width, bias=False) if quotas else None
        self.hidden = nn.Linear(width, width)
        self.profiles = profiles

    def forward(self, tokens: Tensor, pair: Tensor, context: Tensor, quota: Tensor | None = None) -> Tensor:
        """Mix: tokens [M, N, d], pair [M, N, FP], context [M, 2d], quota [M, N, P, 2] or None."""
        mixed = self.candidate(torch.cat([tokens, pair], dim=-1)) + self.context(context).unsqueeze(1)
        mixed = mixed.unsqueeze(2)  # [M, N, 1, d]
        if self.profile is not None:
            index = torch.arange(self.profiles, device=tokens.device).expand(tokens.shape[0], self.profiles)
            mixed = mixed + self.profile(index).unsqueeze(1)  # [M, N, P, d]
        if self.quota is not None and quota is not None:
            mixed = mixed + self.quota(quota)
        return functional.relu(self.hidden(functional.relu(mixed)))


class ActorHead(nn.Module):
    """Tokens and the decision -> logits [M, N, P], quotas [M, N, P, 2]; the head graph of an artifact.

    Without `quota_bounds` the quotas are exactly 1 and have no parameters; with them they are a tanh mapped
    onto the bounds.
    """

    def __init__(self, width: int, profiles: int, quota_bounds: tuple[float, float] | None) -> None:
        super().__init__()
        self.attention = TaskContext(width)
        self.trunk = CandidateTrunk(width, profiles, quotas=False)
        self.logit = nn.Linear(width, 1)
        self.quota = nn.Linear(width, 2) if quota_bounds is not None else None
        self.low, self.high = quota_bounds or (1.0, 1.0)

    def forward(
        self, tokens: Tensor, pair: Tensor, task: Tensor, ctx: Tensor, w: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score every candidate; the mask bool[M, N, P] only decides whom the query attends to."""
        context = self.attention(tokens, task, ctx, w, mask.any(dim=-1))
        hidden = self.trunk(tokens, pair, context)
        logits = self.logit(hidden).squeeze(-1)
        if self.quota is None:
            return logits, torch.ones_like(logits).unsqueeze(-1).expand(*logits.shape, 2)
        half = 0.5 * (self.high - self.low)
        return logits, self.low + half * (1.0 + torch.tanh(self.quota(hidden)))


class SetActor(nn.Module):
    """The policy: encoder and head."""

    def __init__(
        self, width: int, profiles: int = 1, quota_bounds: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        self.encoder = NodeEncoder(width)
        self.head = ActorHead(width, profiles, quota_bounds)

    def forward(
        self, node: Tensor, pair: Tensor, task: Tensor, ctx: Tensor, w: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score candidates: -> logits [M, N, P], quotas [M, N, P, 2]."""
        logits, quotas = self.head(self.encoder(node), pair, task, ctx, w, mask)
        return logits, quotas


class SetCritic(nn.Module):
    """Twin action values of every candidate: two linear heads on one trunk."""

    def __init__(self, width: int, profiles: int = 1, quotas: bool = False) -> None:
        super().__init__()
        self.encoder = NodeEncoder(width)
        self.attention = TaskContext(width)
        self.trunk = CandidateTrunk(width, profiles, quotas)
        self.value = nn.Linear(width, 2)

    def forward(
        self,
        node: Tensor,
        pair: Tensor,
        task: Tensor,
        ctx: Tensor,
        w: Tensor,
        mask: Tensor,
        quota: Tensor | None = None,
    ) -> Tensor:
        """Value candidates: -> Q [M, N, P, 2], the last axis being the twins."""
        tokens = self.encoder(node)
        context = self.attention(tokens, task, ctx, w, mask.any(dim=-1))
        values: Tensor = self.value(self.trunk(tokens, pair, context, quota))
        return values
