"""A model opened in this process alone: a checkpoint of a run, or a folder of safetensors; no process group is
made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch
from torch import Tensor

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.state import BUFFERS, held_tensors, load_weights, refuse_not_finite
from trainer.checkpoint.store import Checkpoint, check_files
from trainer.huggingface.folder import open_described
from trainer.huggingface.model_card import chosen_checkpoint, is_run, read_card
from trainer.huggingface.same_tokenizer import recorded_tokenizer
from trainer.huggingface.weights import import_weights
from trainer.model.attention import document_masks, kernel_for
from trainer.model.config.description import ModelConfig
from trainer.model.experts import Router, Routing
from trainer.model.loss import Losses, Targets
from trainer.model.rows import DeviceRows
from trainer.model.transformer import CausalLM
from trainer.recipe_tables.parallelism import ExpertsTable

Dtype = Literal["float64", "float32", "bfloat16"]
_LONGEST: Final = "max_position_embeddings"
_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float32,  # whose range is too small for what models trained in bfloat16 pass on
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model with its weights on one device. `seq_len`: the longest row that it is asked about. `place`: what
    was read; `tokenizer`: the recorded one of its data, None where nothing records it. `output`, `checkpoint`:
    the run whose checkpoint it is; None for a folder."""

    model: CausalLM
    seq_len: int
    place: str
    tokenizer: TokenizerIdentity | None
    output: Folder | None = None
    checkpoint: Checkpoint | None = None

    @property
    def config(self) -> ModelConfig:
        """Its description."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.model.parameters()).device

    def logits(self, rows: DeviceRows) -> Tensor:
        """Logits (B, T, V) of rows on its device, in its dtype. Experts have no capacity that tokens could
        exceed, whatever the run had: a row's logits do not depend on its neighbours."""
        return cast(Tensor, self._computed(rows, None))

    def losses(self, rows: DeviceRows) -> Tensor:
        """The loss of each position, (B, T), at least float32; 0 where its label does not count."""
        return cast(Losses, self._computed(rows, Targets(labels_BT=rows.labels_BT))).of_tokens_BT

    @torch.no_grad()
    def _computed(self, rows: DeviceRows, targets: Targets | None) -> Tensor | Losses:
        config = self.config
        kernel = kernel_for(self.device, min(config.head_dim, config.value_dim))
        masks = document_masks(rows.documents_BT, config.windows, kernel)
        routing = None if config.experts is None else routing_of(rows)
        found = self.model(rows.inputs_BT, rows.positions_BT, masks, routing, targets)
        return cast(Tensor | Losses, found)


def open_model(
    place: str, *, step: int | None = None, device: torch.device | None = None, dtype: Dtype | None = None
) -> OpenedModel:
    """The model of the checkpoint of `step` steps (None: the newest) of the run whose output is `place`, or the
    one in a folder of safetensors. `device`: None is the first GPU, the CPU where there is none; `dtype`: of its
    weights and of what they compute, None: that of the run, or the folder's.

    RecipeError where `place` is neither, has no such checkpoint, or holds a model of a family that is not
    computed here; CheckpointError where its files are not whole."""
    if device is None:
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    folder = Folder(place)
    if is_run(folder):
        return _of_run(folder, step, device, dtype)
    if step is not None:
        raise RecipeError(
            f"--step {step}: {folder.url} is a folder of safetensors, which holds the weights of one step"
        )
    return _of_folder(folder, device, dtype)


def _of_run(output: Folder, step: int | None, device: torch.device, dtype: Dtype | None) -> OpenedModel:
    card, chosen = read_card(output), chosen_checkpoint(output, step)
    checkpoint = Folder(card.checkpoints).folder(chosen.name)
    check_files(checkpoint)
    has_biases = any(name.startswith(BUFFERS) for name in held_tensors(checkpoint))
    wanted = _DTYPES[dtype or card.dtype]
    model = _built(card.config, device, wanted, has_biases=has_biases)
    load_weights(checkpoint, dict(model.named_parameters()), dict(model.named_buffers()), None)
    return OpenedModel(
        model=_ready(model, wanted, checkpoint),
        seq_len=card.seq_len,
        place=checkpoint.url,
        tokenizer=card.tokenizer,
        output=output,
        checkpoint=chosen,
    )


def _of_folder(folder: Folder, device: torch.device, dtype: Dtype | None) -> OpenedModel:
    found = open_described(folder)
    described: dict[str, object] = json.loads(folder.read("config.json"))
    own = str(described.get("dtype") or described.get("torch_dtype") or "float32")
    seq_len = described.get(_LONGEST)
    if dtype is None and own not in _DTYPES:
        raise RecipeError(
            f"{folder.at('config.json')}: dtype = {own!r}: expected one of {', '.join(_DTYPES)}"
        )
    if not isinstance(seq_len, int):
        raise RecipeError(
            f"{folder.at('config.json')} lacks {_LONGEST}: expected the longest row of the model"
        )
    wanted = _DTYPES[dtype or own]
    model = _built(found.config, device, wanted, has_biases=False)
    import_weights(
        found, found.config, {**dict(model.named_parameters()), **dict(model.named_buffers())}, seed=0
    )
    return OpenedModel(
        model=_ready(model, wanted, folder),
        seq_len=seq_len,
        place=folder.url,
        tokenizer=recorded_tokenizer(folder),
    )


def _built(config: ModelConfig, device: torch.device, dtype: torch.dtype, *, has_biases: bool) -> CausalLM:
    """Without weights, in float32 or wider: what is loaded is rounded afterwards."""
    experts = ExpertsTable(capacity_factor=0.0, bias_rate=1.0 if has_biases else 0.0)
    with torch.device("meta"):
        model = CausalLM(config, experts=experts)
        model.to(torch.promote_types(dtype, torch.float32)).requires_grad_(False)
    model.to_empty(device=device)
    model.tie()  # moving from meta gave each module a parameter of its own
    for buffer in model.buffers():
        buffer.zero_()
    return model


def _ready(model: CausalLM, dtype: torch.dtype, folder: Folder) -> CausalLM:
    """The model in `dtype`. Routers stay as they are, for rounding decides between experts."""
    named = dict(model.named_parameters())
    refuse_not_finite(folder, [name for name, tensor in named.items() if not tensor.isfinite().all()])
    for module in model.modules():
        if not isinstance(module, Router):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
    return model.eval()


def routing_of(rows: DeviceRows) -> Routing:
    """How the tokens of some rows are dealt to experts: each to all that it wants."""
    places_T = torch.arange(rows.inputs_BT.shape[1], device=rows.inputs_BT.device)
    return Routing(
        places_BT=places_T.expand_as(rows.inputs_BT),
        counted_B=torch.zeros_like(rows.sources_B),
        scale=torch.zeros((), device=rows.inputs_BT.device),
        sequence=None,
    )
