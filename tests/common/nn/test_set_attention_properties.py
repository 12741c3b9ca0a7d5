# SPDX-License-Identifier: Apache-2.0
"""Any number of nodes, in any order, with any padding."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.nn.init import build
from shoal_common.nn.set_attention import SetActor, SetCritic
from shoal_common.observation import FC, FN, FP, FT

ACTOR = build(lambda: SetActor(8, 2, (0.5, 1.0)), torch.Generator().manual_seed(0), ())
CRITIC = build(lambda: SetCritic(8, 2, quotas=True), torch.Generator().manual_seed(1), ())
common = settings(deadline=None, derandomize=True, max_examples=25)


@st.composite
def decisions(draw):
    m, n, seed = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(0, 1000))
    g = torch.Generator().manual_seed(seed)
    shapes = ((m, n, FN), (m, n, FP), (m, FT), (m, FC), (m, 4))
    return [torch.rand(s, generator=g) for s in shapes] + [torch.rand(m, n, 2, generator=g) < 0.6], g


def outputs(inputs):
    logits, quotas = ACTOR(*inputs)
    return torch.cat([logits.unsqueeze(-1), quotas, CRITIC(*inputs, quotas)], -1)


@common
@given(decisions())
def test_permuting_nodes_permutes_every_output(made):
    inputs, g = made
    order = torch.randperm(inputs[0].shape[1], generator=g)
    permuted = [x[:, order] if x.dim() == 3 else x for x in inputs]
    assert torch.allclose(outputs(permuted), outputs(inputs)[:, order], atol=1e-5)


@common
@given(decisions(), st.integers(1, 30))
def test_padding_changes_nothing(made, extra):
    inputs, g = made
    padded = [
        torch.cat([x, 9 * torch.rand(x.shape[0], extra, x.shape[2], generator=g).to(x.dtype)], 1)
        if x.dim() == 3
        else x
        for x in inputs
    ]
    padded[-1][:, -extra:] = False
    feasible = inputs[-1].any(-1).any(-1)  # where nothing is feasible the served answer is to abstain
    n = inputs[0].shape[1]
    assert torch.allclose(outputs(padded)[feasible, :n], outputs(inputs)[feasible], atol=1e-5)


@common
@given(decisions())
def test_decisions_do_not_see_each_other(made):
    inputs, _ = made
    alone = [x[:1] for x in inputs]
    assert torch.allclose(outputs(inputs)[:1], outputs(alone), atol=1e-5)
