"""The export of a run's newest checkpoint into files of few tensors, as a command: `main([RUN, DIR])`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lineage.storage.folder import Folder
from trainer.attempts import attempts
from trainer.checkpoint.store import complete_checkpoints
from trainer.huggingface.model_card import read_card
from trainer.huggingface.weights import Export, export_weights


def main(arguments: Sequence[str]) -> int:
    output = Folder(arguments[0])
    card = read_card(output)
    newest = complete_checkpoints(Folder(card.checkpoints), attempts(output))[-1]
    described = Export(
        config=card.config,
        seq_len=card.seq_len,
        end_of_text=card.tokenizer.eot_id,
        dtype=torch.float32,
        more_files={"tokenizer.model": b"ranks"},
    )
    target = Path(arguments[1])
    export_weights(Folder(card.checkpoints).folder(newest.name), target, described, file_bytes=20_000)
    return 0
