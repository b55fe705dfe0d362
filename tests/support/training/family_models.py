"""Models of ours with the weights of transformers' own, and what they compute of rows of documents."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.training.transformers_models import (
    ReferenceModel,
    Result,
    Row,
    reference_model,
    reference_rows,
)
from trainer.data.dataset import IGNORED
from trainer.model.attention import document_masks
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import PLANNED_KINDS, from_hugging_face
from trainer.model.experts import Routing
from trainer.model.rows import DeviceRows
from trainer.model.transformer import CausalLM
from trainer.recipe_tables.parallelism import ExpertsTable

PLAIN_EXPERTS = ExpertsTable(capacity_factor=0.0, balance_loss=0.0, z_loss=0.0)
"""Nothing is dropped and nothing added to the loss, as in transformers."""
_ONE_BY_ONE = (
    (r"\.mlp\.experts\.(\d+)\.gate_proj\.weight", ".block_sparse_moe.experts.w1"),
    (r"\.mlp\.experts\.(\d+)\.down_proj\.weight", ".block_sparse_moe.experts.w2"),
    (r"\.mlp\.experts\.(\d+)\.up_proj\.weight", ".block_sparse_moe.experts.w3"),
    (r"\.block_sparse_moe\.experts\.(\d+)\.w(\d)\.weight", r".block_sparse_moe.experts.w\2"),
)
_OTHERS = (
    (r"\.mlp\.gate\.e_score_correction_bias", ".block_sparse_moe.bias"),
    (r"\.mlp\.gate\.", ".block_sparse_moe.gate."),
    (r"\.mlp\.router\.", ".block_sparse_moe.gate."),
    (r"\.mlp\.shared_experts\.", ".block_sparse_moe.shared_expert."),
)


def config_of(reference: ReferenceModel) -> ModelConfig:
    """The description of a model of transformers."""
    return from_hugging_face(reference.config, where="config.json", kinds=PLANNED_KINDS)


def by_our_names(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a folder, or their gradients, as our parameters (and buffers) hold them."""
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in stored.items():
        for pattern, ours in _ONE_BY_ONE:
            if match := re.search(pattern, name):
                experts.setdefault(re.sub(pattern, ours, name), {})[int(match[1])] = tensor
                break
        else:
            found |= _fused(name, tensor)
    return found | {
        name: torch.stack([of_each[number] for number in range(len(of_each))])
        for name, of_each in experts.items()
    }


def _fused(name: str, tensor: Tensor) -> dict[str, Tensor]:
    before, _, last = name.rpartition(".")
    if before.endswith("mlp.experts"):
        ours = before.replace("mlp.experts", "block_sparse_moe.experts") + "."
        letter = "b" if last.endswith("_bias") else "w"
        turned = tensor if letter == "b" else tensor.mT
        if last.startswith("down_proj"):
            return {f"{ours}{letter}2": turned.contiguous()}
        parts = (tensor[..., 0::2], tensor[..., 1::2])
        one, three = parts if letter == "b" else (part.mT for part in parts)
        return {f"{ours}{letter}1": one.contiguous(), f"{ours}{letter}3": three.contiguous()}
    for pattern, ours in _OTHERS:
        name = re.sub(pattern, ours, name)
    return {name: tensor}


def device_rows(rows: Sequence[Row]) -> DeviceRows:
    """Rows of documents, filled up to the length of the longest by a document of their own that counts nowhere."""
    length = max(sum(map(len, row)) for row in rows)
    length += length % 2
    tokens, labels, positions, documents = (
        torch.zeros(len(rows), length, dtype=torch.int64) for _ in range(4)
    )
    labels[:] = IGNORED
    for number, row in enumerate(rows):
        at = 0
        for document, ids in enumerate(row):
            own = slice(at, at + len(ids))
            tokens[number, own], documents[number, own] = ids, document
            positions[number, own] = torch.arange(len(ids))
            labels[number, at : at + len(ids) - 1] = ids[1:]
            at += len(ids)
        positions[number, at:] = torch.arange(length - at)
        documents[number, at:] = len(row)
    return DeviceRows(
        inputs_BT=tokens,
        labels_BT=labels,
        positions_BT=positions.int(),
        documents_BT=documents.int(),
        sources_B=torch.zeros(len(rows), dtype=torch.int64),
        rows_B=torch.arange(len(rows)),
    )


def routing_of(rows: DeviceRows) -> Routing:
    """What routers are told of rows that one process has whole, where nothing is added to the loss."""
    places_T = torch.arange(rows.inputs_BT.shape[1])
    return Routing(
        places_BT=places_T.expand_as(rows.inputs_BT),
        counted_B=(rows.labels_BT != IGNORED).sum(-1),
        scale=torch.zeros((), dtype=torch.float64),
        sequence=None,
    )


def computed(config: ModelConfig, tensors: Mapping[str, Tensor], rows: DeviceRows) -> Result:
    """Loss and gradients, by the names of our parameters, of a model with these weights in one process."""
    model = CausalLM(config, experts=PLAIN_EXPERTS).to(torch.float64)
    model.load_state_dict(dict(tensors), strict=not config.tied)
    model.tie()
    masks = document_masks(rows.documents_BT, config.windows, "dense")
    loss = mean_loss(model(rows.inputs_BT, rows.positions_BT, masks, routing_of(rows)), rows)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {of: one.grad for of, one in model.named_parameters() if one.grad is not None}
    return Result(loss=loss.item(), gradients=gradients)


@functools.cache
def expected_of(name: str) -> Result:
    """What transformers computes of `reference_rows`, by our names."""
    found = reference_model(name).result(reference_rows())
    return Result(loss=found.loss, gradients=by_our_names(found.gradients))


def furthest(found: Result, expected: Result) -> tuple[float, str]:
    """The largest difference of the loss or of a gradient, and of which."""
    assert found.gradients.keys() == expected.gradients.keys()
    apart = {of: float((one - expected.gradients[of]).abs().max()) for of, one in found.gradients.items()}
    return max(
        (difference, of) for of, difference in {**apart, "loss": abs(found.loss - expected.loss)}.items()
    )


def mean_loss(logits_BTV: Tensor, rows: DeviceRows) -> Tensor:
    """The mean over counted labels."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), rows.labels_BT.flatten(), ignore_index=IGNORED)
