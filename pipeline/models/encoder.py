"""A transformers encoder with its classification head: texts to scores of one label.

The scores of a call are a function of its texts, of the model and of the kind of device: batches are cut from
the texts in the order of their lengths, and the number of threads is given. A text's score in two different
batches, and even in two rows of one batch, differs by rounding (padding and place change the order of sums).
So equal texts of a call are scored once, and whoever wants equal bytes passes the same texts together."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from lineage.recipe import RecipeError
from stages.steps.classifier import ClassifierTable
from stages.steps.model_step import NoRoomError, num_threads
from stages.steps.models.encoder_folder import EncoderConfig, as_local_folder, read_encoder_config

_CHARS_OF_A_TOKEN: Final = 32
"""Characters of a text that are looked at for each token: a page of a megabyte is not tokenized for its first
512."""


def load_encoder(table: ClassifierTable, on_gpu: bool) -> Callable[[Sequence[str]], list[float]]:
    """The encoder of a table: a function of texts to their scores.

    A score is the label's probability, or what the head gives where it has one output. RecipeError if the
    folder cannot be read as a model, or transformers is not installed; the function raises NoRoomError where
    a batch does not fit into a GPU's memory."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    config = read_encoder_config(table.model)
    with as_local_folder(table.model) as folder:
        tokenizer, model = _loaded(table, folder)
    return _Encoder(table, config, tokenizer, model, "cuda" if on_gpu else "cpu")


def check_installed(tables: Sequence[ClassifierTable]) -> None:
    """RecipeError where a table names an encoder and what runs it is not installed."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    for table in tables:
        if missing and table.is_encoder:
            raise RecipeError(
                f"classifier.model = {table.model!r} is a transformers encoder, and {' and '.join(missing)}"
                " cannot be imported: install the extra `models` (pip install '.[models]' in the checkout)"
            )


def _loaded(table: ClassifierTable, folder: str) -> tuple[Any, Any]:
    """The tokenizer and the model of a folder; nothing is downloaded and no code of it is run."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:
        raise RecipeError(
            f"classifier.model = {table.model!r} cannot be read as an encoder: {_in_one_line(error)}"
        ) from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:5])
        raise RecipeError(
            f"classifier.model = {table.model!r} has no weights for {missing}: expected a whole model"
        )
    return tokenizer, model


def _num_positions(model: Any) -> int | None:
    """The tokens that a model has positions for; None if it sets no bound. RoBERTa and its kind number them
    from behind the position of padding, so that the first rows of their table are no token's."""
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if positions is not None and padding is not None and name.endswith("position_embeddings"):
            return positions - int(padding) - 1
    return positions


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class _Encoder:
    def __init__(
        self, table: ClassifierTable, config: EncoderConfig, tokenizer: Any, model: Any, device: str
    ) -> None:
        import torch

        torch.set_num_threads(num_threads(table))
        self._table, self._config, self._device = table, config, device
        self._label = config.labels.index(table.label)
        self._tokenizer = tokenizer
        self._model = model.eval().to(device)
        self._max_tokens = min(
            table.max_tokens, _num_positions(model) or table.max_tokens, tokenizer.model_max_length
        )

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """The score of each text."""
        import torch

        starts = [text[: self._max_tokens * _CHARS_OF_A_TOKEN] for text in texts]
        encoded = self._tokenizer(starts, truncation=True, max_length=self._max_tokens)["input_ids"]
        tokens = [tuple(of_text) for of_text in encoded]
        distinct = sorted(dict.fromkeys(tokens), key=len)
        scores: dict[tuple[int, ...], float] = {}
        for first in range(0, len(distinct), self._table.batch_size):
            batch = distinct[first : first + self._table.batch_size]
            try:
                scores.update(zip(batch, self._score(batch), strict=True))
            except torch.OutOfMemoryError as error:
                raise NoRoomError(
                    f"{self._table.stage} has no room on the GPU for {len(batch)} texts of"
                    f" {len(batch[-1])} tokens: set classifier.batch_size lower than"
                    f" {self._table.batch_size}, and run into a new output"
                ) from error
        return [scores[of_text] for of_text in tokens]

    def _score(self, tokens: Sequence[tuple[int, ...]]) -> list[float]:
        """The scores of one batch, (B,)."""
        import torch

        batch_BT = self._tokenizer.pad({"input_ids": list(map(list, tokens))}, return_tensors="pt").to(
            self._device
        )
        with torch.inference_mode():
            logits_BL = self._model(**batch_BT).logits.double()
        if not bool(torch.isfinite(logits_BL).all()):
            raise ValueError(f"{self._table.stage} gave a score that is no number")
        if self._config.is_regression:
            found_B = logits_BL[:, 0]
        elif self._config.is_multi_label:
            found_B = logits_BL.sigmoid()[:, self._label]
        else:
            found_B = logits_BL.softmax(-1)[:, self._label]
        values: list[float] = found_B.tolist()
        return values
