"""Muon beside torch's own, roles of parameters, groups, averages, and what a step that does not count leaves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lineage.recipe import RecipeError, parse_table
from trainer.model.config.description import LatentAttention
from trainer.optim.muon import orthogonalised
from trainer.optim.optimizer import Optimizer
from trainer.optim.owners import Matrix, owners_of
from trainer.optim.roles import ROLES, check_groups, role_of
from trainer.recipe_tables.optimizer import MuonTable, OptimizerGroup, OptimizerTable

LAYER = "model.layers.0"
WIDE, TALL = f"{LAYER}.mlp.down_proj.weight", f"{LAYER}.mlp.up_proj.weight"
STACK, EMBEDDING, NORM = f"{LAYER}.mlp.experts.w1", "model.embed_tokens.weight", "model.norm.weight"
SHAPES = {WIDE: (24, 56), TALL: (56, 24), STACK: (3, 40, 24), EMBEDDING: (64, 24), NORM: (24,)}


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()}


def parameters() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(value) for name, value in drawn(0).items()}


def take_step(
    optimizer: Optimizer, mine: Mapping[str, nn.Parameter], seed: int, *, verdict: float = 0.0
) -> dict[str, Tensor]:
    gradients = drawn(seed)
    for name, parameter in mine.items():
        parameter.grad = gradients[name].clone()
    optimizer.prepare()
    optimizer.step(lambda peak: peak, torch.tensor(verdict))
    return gradients


@pytest.mark.parametrize("rule", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs_muon_to_the_bit_and_each_expert_a_matrix_of_its_own(
    rule: str, nesterov: bool
) -> None:
    table = parse_table(
        OptimizerTable,
        {"name": "muon", "muon": {"weight_decay": 0.1, "nesterov": nesterov, "rate_by_shape": rule}},
    )
    mine, start = parameters(), drawn(0)
    optimizer = Optimizer(mine, table, None)
    theirs = {name: nn.Parameter(start[name]) for name in (WIDE, TALL)}
    theirs |= {f"{STACK} {expert}": nn.Parameter(start[STACK][expert]) for expert in range(3)}
    muon = torch.optim.Muon(theirs.values(), lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=rule)
    for step in range(1, 9):
        gradients = take_step(optimizer, mine, step)
        for name, parameter in theirs.items():
            stacked, _, expert = name.partition(" ")
            parameter.grad = gradients[stacked][int(expert)] if expert else gradients[stacked]
        muon.step()
        for name, parameter in theirs.items():
            stacked, _, expert = name.partition(" ")
            held = mine[stacked][int(expert)] if expert else mine[stacked]
            assert torch.equal(held, parameter), (name, step)


def test_parameters_of_latent_attention_hold_several_matrices() -> None:
    latent = LatentAttention(query_rank=None, kv_rank=24, nope_dim=16, rope_dim=8, value_dim=12)
    names = f"{LAYER}.self_attn.kv_a_proj_with_mqa.weight", f"{LAYER}.self_attn.kv_b_proj.weight"
    rows = {names[0]: [24, 8], names[1]: [16, 12] * 3}
    torch.manual_seed(0)
    mine = {name: nn.Parameter(torch.randn(sum(rows[name]), 24)) for name in names}
    mine[NORM] = nn.Parameter(torch.ones(24))
    wholes = {name: mine[name].detach().clone() for name in names}
    theirs = {name: [nn.Parameter(part) for part in wholes[name].split(rows[name])] for name in names}
    optimizer = Optimizer(mine, OptimizerTable(name="muon"), None, latent)
    muon = torch.optim.Muon([each for parts in theirs.values() for each in parts], lr=0.02, weight_decay=0.0)
    for _ in range(3):
        for name, parameter in mine.items():
            gradient = torch.randn_like(parameter)
            parameter.grad = gradient
            for part, held in zip(gradient.split(rows.get(name, [24])), theirs.get(name, ()), strict=False):
                held.grad = part.clone()
        optimizer.prepare()
        optimizer.step(lambda peak: peak, torch.tensor(0.0))
        muon.step()
        for name, parts in theirs.items():
            assert torch.equal(mine[name], torch.cat(list(parts))), name


def test_what_is_no_matrix_of_a_layer_is_adamws_to_the_bit() -> None:
    mine, theirs = parameters(), parameters()
    optimizer = Optimizer(mine, OptimizerTable(name="muon", lr=3e-3), None)
    adamw = torch.optim.AdamW(
        [{"params": [theirs[EMBEDDING]], "weight_decay": 0.1}, {"params": [theirs[NORM]], "weight_decay": 0}],
        lr=3e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    for step in range(1, 5):
        gradients = take_step(optimizer, mine, step)
        theirs[EMBEDDING].grad, theirs[NORM].grad = gradients[EMBEDDING], gradients[NORM]
        adamw.step()
    assert all(torch.equal(mine[name], theirs[name]) for name in (EMBEDDING, NORM))


@pytest.mark.parametrize(("coefficients", "least"), [("quintic", 0.65), ("polar_express", 0.85)])
@pytest.mark.parametrize("shape", [(48, 48), (32, 96), (96, 32)])
def test_singular_values_come_near_one(coefficients: str, least: float, shape: tuple[int, int]) -> None:
    table = parse_table(MuonTable, {"coefficients": coefficients})
    torch.manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(side, min(shape)))[0] for side in shape)
    matrix = left @ torch.diag(torch.logspace(-2, 0, min(shape))) @ right.T
    values = torch.linalg.svdvals(orthogonalised(matrix.bfloat16(), table).float())
    assert least < float(values.min())
    assert float(values.max()) < 1.25


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), max_size=40),
    st.integers(1, 9),
)
def test_no_owner_has_more_than_its_share_and_the_largest_matrix(
    shapes: list[tuple[int, int]], num_ranks: int
) -> None:
    matrices = [
        Matrix(
            parameter=number, block=((0, rows), (0, columns)), pieces=(((0, rows), (0, columns)),) * num_ranks
        )
        for number, (rows, columns) in enumerate(shapes)
    ]
    costs = [min(shape) ** 2 * (min(shape) + 2 * max(shape)) for shape in shapes]
    loads = [0.0] * num_ranks
    for owner, cost in zip(owners_of(matrices, num_ranks), costs, strict=True):
        loads[owner] += cost
    assert sum(loads) == sum(costs)
    assert max(loads) <= sum(costs) / num_ranks + max(costs, default=0)


def test_a_step_that_does_not_count_changes_nothing() -> None:
    table = OptimizerTable(name="muon", ema=0.5)
    mine = parameters()
    optimizer = Optimizer(mine, table, None)
    optimizer.begin()
    take_step(optimizer, mine, 1)

    def held() -> list[Tensor]:
        states = [tensor for parameter in mine.values() for tensor in optimizer.state(parameter).values()]
        return [tensor.detach().clone() for tensor in (*mine.values(), *states, optimizer.num_updates)]

    before = held()
    take_step(optimizer, mine, 2, verdict=1.0)
    assert all(torch.equal(one, other) for one, other in zip(before, held(), strict=True))
    take_step(optimizer, mine, 2)
    assert not any(torch.equal(one, other) for one, other in zip(before, held(), strict=True))


def test_the_average_follows_the_weights_that_the_run_began_with() -> None:
    mine = parameters()
    optimizer = Optimizer(mine, OptimizerTable(lr=0.1, ema=0.75), None)
    with torch.no_grad():
        mine[NORM].fill_(1.0)  # weights are loaded after the optimizer is made
    optimizer.begin()
    expected = mine[NORM].detach().clone()
    for step in (1, 2, 3):
        take_step(optimizer, mine, step)
        expected = 0.75 * expected + 0.25 * mine[NORM].detach()
    torch.testing.assert_close(optimizer.state(mine[NORM])["ema"], expected)


def test_a_group_scales_the_rate_and_sets_the_decay_of_what_it_matches() -> None:
    groups = (
        OptimizerGroup(match="embedding", weight_decay=0.0),
        OptimizerGroup(match=f"{LAYER}.mlp.up_*", lr_factor=0.5, weight_decay=0.0),
    )
    grouped, alone = parameters(), parameters()
    no_decay = OptimizerTable(name="muon", lr=0.01, weight_decay=0.0, muon=MuonTable(lr=0.01))
    table = OptimizerTable(name="muon", lr=0.01, muon=MuonTable(lr=0.02), group=groups)
    for mine, asked in ((grouped, table), (alone, no_decay)):
        take_step(Optimizer(mine, asked, None), mine, 1)
    assert torch.equal(grouped[EMBEDDING], alone[EMBEDDING])
    assert torch.equal(grouped[TALL], alone[TALL])
    assert not torch.equal(grouped[WIDE], alone[WIDE])


@pytest.mark.parametrize(
    ("name", "num_axes", "role"),
    [
        (EMBEDDING, 2, "embedding"),
        ("lm_head.weight", 2, "head"),
        (NORM, 1, "norm"),
        (f"{LAYER}.input_layernorm.weight", 1, "norm"),
        (f"{LAYER}.self_attn.q_norm.weight", 1, "norm"),
        (f"{LAYER}.self_attn.q_proj.weight", 2, "matrix"),
        (f"{LAYER}.self_attn.q_proj.bias", 1, "bias"),
        (f"{LAYER}.self_attn.sinks", 1, "sink"),
        (f"{LAYER}.mlp.gate_proj.weight", 2, "matrix"),
        (f"{LAYER}.mlp.gate.weight", 2, "router"),
        (f"{LAYER}.block_sparse_moe.gate.weight", 2, "router"),
        (f"{LAYER}.mlp.router.weight", 2, "router"),
        (f"{LAYER}.mlp.router.bias", 1, "bias"),
        (f"{LAYER}.block_sparse_moe.experts.w2", 3, "matrix"),
        (f"{LAYER}.block_sparse_moe.experts.b1", 2, "bias"),
        (f"{LAYER}.self_attn.kv_a_proj_with_mqa.weight", 2, "matrix"),
        (f"{LAYER}.self_attn.kv_a_layernorm.weight", 1, "norm"),
    ],
)
def test_a_parameter_has_the_role_that_its_name_says(name: str, num_axes: int, role: str) -> None:
    assert role_of(name, num_axes) == role
    assert role in ROLES


@pytest.mark.parametrize(
    ("matches", "number", "why"),
    [
        (("sink",), 0, "no parameter of the model matches; expected one of matrix, embedding, norm"),
        (("model.layers.9.*",), 0, "a pattern of names such as model.layers.0.mlp.down_proj.weight"),
        (("head",), 0, "the output matrix of this model is its embedding: match embedding"),
        (("matrix", "*.up_proj.weight"), 1, f"{TALL} first, is in a group before it"),
    ],
)
def test_a_group_that_no_parameter_is_in_is_refused_by_name(
    matches: tuple[str, ...], number: int, why: str
) -> None:
    groups = tuple(OptimizerGroup(match=match, lr_factor=0.5) for match in matches)
    with pytest.raises(RecipeError) as raised:
        check_groups(groups, {name: len(shape) for name, shape in SHAPES.items()})
    assert raised.value.key == f"train.optimizer.group[{number}].match"
    assert f'"{matches[number]}"' in str(raised.value)
    assert why in str(raised.value)
    check_groups((OptimizerGroup(match="norm", lr_factor=0.5),), {NORM: 1})


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"muon": {"lr": 0.01}}, "train.optimizer.muon"),
        ({"decay": "sqrt"}, "train.optimizer.decay"),
        ({"schedule": "linear", "decay_share": 0.5}, "train.optimizer.decay_share"),
        ({"group": [{"match": "norm"}]}, 'match = "norm" changes nothing'),
    ],
)
def test_a_key_that_nothing_reads_is_refused(table: dict[str, object], key: str) -> None:
    with pytest.raises(RecipeError, match=key.replace("[", r"\[")):
        parse_table(OptimizerTable, table)
