"""Random small models of each family by transformers' own classes, for comparison: config.json, weights, loss and
gradients, all of it in float64.

transformers computes norms, softmax and rotary angles in float32 whatever the weights are. `_InFloat64` widens
each such request, so that differences of 1e-10 mean something."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers.core_model_loading import revert_weight_conversion

Row = Sequence[Tensor]
"""The documents of a row: token ids, (T)."""

VOCAB: Final = 256
WINDOW: Final = 8
_LENGTHS: Final = ((29, 12, 7), (3, 45))
_SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-3, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": VOCAB - 1, "pad_token_id": None,
}  # fmt: skip
"""An epsilon so large that a norm which does not read it is found."""
_YARN: Final[Mapping[str, Any]] = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 2.0, "beta_slow": 0.5,
}  # fmt: skip
"""Its ramp begins and ends within the few frequencies of a head of these models."""
_PLAIN_ROPE: Final[Mapping[str, Any]] = {"rope_type": "default", "rope_theta": 1e4}

FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": WINDOW},
    "qwen2": {"tie_word_embeddings": True, "rope_parameters": {**_YARN, "rope_theta": 1e6}},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
        "norm_topk_prob": True,
    },
    "olmo2": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "olmo3": {
        "sliding_window": WINDOW,
        "rope_parameters": {
            "full_attention": {**_YARN, "rope_theta": 5e5, "attention_factor": 1.2},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    },
    "gemma2": {
        "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW, "tie_word_embeddings": True,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW, "tie_word_embeddings": True,
        "num_hidden_layers": 6,
    },
    "smollm3": {"tie_word_embeddings": True},
    "mixtral": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 4,
        "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
        "rope_parameters": {**_YARN, "rope_theta": 1e4, "mscale": 0.7, "mscale_all_dim": 1.3},
    },
    "gpt_oss": {
        "head_dim": 16, "sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 16, "swiglu_limit": 1.0,
        "rope_parameters": {**_YARN, "rope_theta": 1.5e5, "truncate": False},
    },
}  # fmt: skip
"""By model_type, what its model has beside `_SHAPE`. Limits, caps and rotary rules are so small that they act."""

VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "llama with long waves slowed": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }}),
    "llama with positions in steps": ("llama", {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    }),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2 with windows in its last layers": ("qwen2", {
        "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2,
    }),
    "qwen3_moe with dense layers": ("qwen3_moe", {
        "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [3],
    }),
    "olmo3 before its long context": ("olmo3", {
        "rope_parameters": {"full_attention": {**_PLAIN_ROPE}, "sliding_attention": {**_PLAIN_ROPE}},
    }),
    "gemma3_text of a long context": ("gemma3_text", {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }),
    "deepseek_v3 without a latent of queries": ("deepseek_v3", {
        "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "rope_parameters": _PLAIN_ROPE,
    }),
}  # fmt: skip
"""Name: model_type, and what differs from that family's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`loss`: the mean over counted labels of all documents; `gradients`: by the names of tensors on disk."""

    loss: float
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """A model of transformers. `config`: its config.json as save_pretrained writes it; `tensors`: its weights in
    float64, by their names on disk."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    module: transformers.PreTrainedModel

    def result(self, rows: Sequence[Row]) -> Result:
        """Loss and gradients, each document run alone. A label is the token behind its input in a document."""
        self.module.zero_grad(set_to_none=True)
        num_labels = sum(len(document) - 1 for row in rows for document in row)
        total = torch.zeros((), dtype=torch.float64)
        for document in (document for row in rows for document in row if len(document) > 1):
            logits_TV = self.logits(document)
            total = total + F.cross_entropy(logits_TV[:-1], document[1:], reduction="sum")
        (total / num_labels).backward()
        # Experts that no token chose have no gradient.
        held = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in self.module.named_parameters()
        }
        return Result(loss=total.item() / num_labels, gradients=_as_on_disk(self.module, held))

    def logits(self, document: Tensor) -> Tensor:
        """Logits (T, V) of a document (T)."""
        with _in_float64():
            return cast(Tensor, self.module(document[None], use_cache=False).logits[0])

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
        """Write the folder that save_pretrained makes of the model in `dtype`."""
        model = transformers.AutoModelForCausalLM.from_config(self.module.config, dtype=dtype)
        model.load_state_dict(self.module.state_dict())
        model.save_pretrained(folder)
        return folder


def reference_model(name: str) -> ReferenceModel:
    """The model that FAMILIES or VARIANTS name; one for each name in a process, not to be changed."""
    if name in FAMILIES:
        return _made(name, json.dumps({}))
    family, changes = VARIANTS[name]
    return _made(family, json.dumps(changes))


def reference_rows(
    lengths: Sequence[Sequence[int]] = _LENGTHS, *, vocab_size: int = VOCAB
) -> list[list[Tensor]]:
    """Rows of documents of these lengths, the last id in none of them."""
    generator = torch.Generator().manual_seed(11)
    return [
        [torch.randint(0, vocab_size - 1, (length,), generator=generator) for length in row]
        for row in lengths
    ]


@functools.cache
def _made(family: str, changes: str) -> ReferenceModel:
    described = {**_SHAPE, **FAMILIES[family], **json.loads(changes)}
    with _in_float64():
        config = transformers.AutoConfig.for_model(family, **described)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        _draw(model, seed=zlib.crc32(f"{family}{changes}".encode()))
    written = json.loads(model.config.to_json_string(use_diff=True))
    written["architectures"] = [type(model).__name__]
    return ReferenceModel(config=written, tensors=_as_on_disk(model, _weights(model)), module=model)


def _weights(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and stored buffers; of tied ones the embedding alone."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if name not in tied}


def _draw(model: transformers.PreTrainedModel, seed: int) -> None:
    """Fill norms, biases and sinks too, each as large as it must be to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(_weights(model).items()):
            of_model = model.get_parameter_or_buffer(name)
            noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
            if name.endswith("norm.weight"):
                of_model.add_(0.3 * noise)  # around what its class begins with: 1, or 0 where it adds 1
            elif name.endswith("e_score_correction_bias"):
                of_model.copy_(0.1 * noise)  # a larger one would leave experts without a token
            elif tensor.ndim == 1 or name.endswith("_bias"):
                of_model.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                of_model.copy_(0.5 * noise)
            else:
                # Fused experts of gpt_oss have their inputs first; here their sizes hardly differ.
                of_model.copy_(1.5 * noise / tensor.shape[-1] ** 0.5)


def _as_on_disk(model: transformers.PreTrainedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in revert_weight_conversion(model, dict(tensors)).items()}


class _InFloat64(TorchFunctionMode):
    """Whatever is asked for in float32 is made in float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        wide = {name: self._widened(value) for name, value in (kwargs or {}).items()}
        return function(*(self._widened(value) for value in args), **wide)

    @staticmethod
    def _widened(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value


@contextmanager
def _in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64():
            yield
    finally:
        torch.set_default_dtype(before)
