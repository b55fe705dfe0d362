"""What a run says about its model (`<output>/model.json`), and which of its checkpoints are there. No torch
here: a purge asks for the checkpoint before an exposure where nothing is trained.

Checkpoints that lie within the output are recorded by their name there. So a copy of an output, one that was
moved, and one that is reached by a link are read where the call finds them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote
from lineage.storage.places import name_in
from trainer.attempts import attempts
from trainer.checkpoint.same_model import MODEL_CARD
from trainer.checkpoint.store import Checkpoint, complete_checkpoints, other_owner
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import from_hugging_face, to_hugging_face
from trainer.provenance.facts import recorded_places


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """All that an export needs besides the weights. `dtype` is that of the forward pass; `checkpoints` is the
    path or URL of their folder."""

    config: ModelConfig
    seq_len: int
    dtype: str
    tokenizer: TokenizerIdentity
    checkpoints: str


def publish_card(output: Folder, card: ModelCard) -> None:
    """Write `model.json`; each start does, since `train.checkpoint.path` and `dtype` may change."""
    described = to_hugging_face(
        card.config, seq_len=card.seq_len, end_of_text=card.tokenizer.eot_id, dtype=card.dtype
    )
    row = {
        "config": described,
        "tokenizer": card.tokenizer.to_json(),
        "checkpoints": name_in(output, card.checkpoints) or card.checkpoints,
    }
    output.publish(MODEL_CARD, json.dumps(row, indent=2).encode())


def read_card(output: Folder) -> ModelCard:
    """The card of a training run's output. RecipeError where there is none, or where its checkpoints lie
    outside of it and are those of another output."""
    if not output.exists(MODEL_CARD):
        raise RecipeError(
            f"{output.url} has no {MODEL_CARD}: expected the output of a training run (train.output)"
        )
    row = json.loads(output.read(MODEL_CARD))
    described = row["config"]
    return ModelCard(
        config=from_hugging_face(described, where=output.at(MODEL_CARD)),
        seq_len=described["max_position_embeddings"],
        dtype=described["torch_dtype"],
        tokenizer=TokenizerIdentity.from_json(row["tokenizer"]),
        checkpoints=_checkpoints(output, row["checkpoints"]).url,
    )


def is_run(folder: Folder) -> bool:
    """Whether a folder is the output of a training run, or one of safetensors. RecipeError where it is
    neither."""
    if folder.exists(MODEL_CARD):
        return True
    if folder.exists("config.json"):
        return False
    raise RecipeError(
        f"{folder.url} holds neither {MODEL_CARD} (the output of a training run) nor config.json (a folder of"
        " safetensors, as `sluice export` writes it)"
    )


def _checkpoints(output: Folder, recorded: str) -> Folder:
    """The folder of the checkpoints of `output`: within it, if they lay within it when they were recorded."""
    if not recorded.startswith("/") and not is_remote(recorded):
        return output.folder(recorded)
    # Earlier releases wrote down where the folder lay, also within an output that has been copied or moved since.
    for place in (output.url, *recorded_places(output)):
        if name := name_in(Folder(place), recorded):
            return output.folder(name)
    apart = Folder(recorded)
    if (owner := other_owner(apart, output)) is not None and Folder(owner).exists(MODEL_CARD):
        raise RecipeError(
            f"{output.at(MODEL_CARD)} records its checkpoints at {apart.url}, which holds those of the run with"
            f" the output {owner!r}: give {output.url!r} a copy of them, and that file their place"
        )
    return apart


def chosen_checkpoint(output: Folder, step: int | None) -> Checkpoint:
    """The checkpoint of `step` steps, None: the newest. RecipeError where the run has none of it."""
    found = checkpoints_of(output)
    chosen = [entry for entry in found if step is None or entry.step == step]
    if chosen:
        return chosen[-1]
    if not found:
        raise RecipeError(f"{output.url} has no complete checkpoint yet: the same `sluice train` saves one")
    known = ", ".join(str(entry.step) for entry in found)
    raise RecipeError(f"--step {step}: {output.url} has checkpoints of steps {known}")


def averaged_checkpoints(output: Folder, step: int | None, num: int) -> tuple[Checkpoint, ...]:
    """So many checkpoints, the last of them that of `chosen_checkpoint`. RecipeError where there are fewer."""
    last = chosen_checkpoint(output, step)
    found = [entry for entry in checkpoints_of(output) if entry.step <= last.step]
    if num > len(found):
        raise RecipeError(
            f"--average {num}: {output.url} has {len(found)} checkpoint{'s' if len(found) > 1 else ''} up to step"
            f" {last.step}: expected at most that many; train.checkpoint.keep says how many a run keeps"
        )
    return tuple(found[-num:])


def checkpoints_of(output: Folder) -> tuple[Checkpoint, ...]:
    """The complete checkpoints of a training run that are still there, by step; none before its first
    start."""
    if not output.exists(MODEL_CARD):
        return ()
    return complete_checkpoints(Folder(read_card(output).checkpoints), attempts(output))
