"""A transformers encoder of a few thousand weights, drawn from a seed: its scores mean nothing and never
change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

LABELS = ("low", "high")


def make_encoder(folder: Path, labels: Sequence[str] = LABELS, *, width: int = 32, seed: int = 0) -> str:
    """Write one with these labels, as save_pretrained does; the folder's path. One label makes a head of one
    output."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(["the of and to in is for on with a long page of words"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=128,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        initializer_range=0.5,  # so that scores spread
    )
    torch.manual_seed(seed)
    model = transformers.BertForSequenceClassification(config)
    fast.save_pretrained(folder)
    model.save_pretrained(folder, safe_serialization=True)
    return str(folder)
