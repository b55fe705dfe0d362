"""What cannot be spread, found before anything starts. No torch here: a refusal should not wait for it."""

from __future__ import annotations

from lineage.recipe import RecipeError
from trainer.model.sizes import ModelConfig
from trainer.options import TrainTable


def check_layout(table: TrainTable, config: ModelConfig) -> None:
    """RecipeError where this model cannot be spread so; the message names the key, the value and what is expected."""
    _check_tensor(table, config)
    _check_context(table)
    _check_pipeline(table, config)
    _check_experts(table, config)
    if table.dtype == "float8" and table.float8.emulate and table.compile:
        raise RecipeError(
            "train.compile = true: expected false with train.float8.emulate = true, which is not compiled"
        )


def _check_tensor(table: TrainTable, config: ModelConfig) -> None:
    mesh = table.mesh
    divided = {
        "heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "hidden": config.hidden,
        "vocabulary": config.vocab_size,
    }
    for what, number in divided.items():
        if number % mesh.tp:
            raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide the model's {what}, {number}")
    if table.seq_len % mesh.tp:
        raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide train.seq_len, {table.seq_len}")


def _check_context(table: TrainTable) -> None:
    mesh, context = table.mesh, table.context
    if mesh.cp == 1:
        return
    parts = mesh.cp * mesh.tp
    if table.seq_len % parts:
        raise RecipeError(
            f"train.parallel.cp = {mesh.cp}: with tp = {mesh.tp} it must divide train.seq_len, {table.seq_len}"
        )
    if context.balance == "zigzag" and table.seq_len % (2 * mesh.cp):
        raise RecipeError(
            f'train.context.balance = "zigzag": 2 x cp = {2 * mesh.cp} must divide train.seq_len, {table.seq_len}; '
            'set balance = "none"'
        )


def _check_pipeline(table: TrainTable, config: ModelConfig) -> None:
    mesh, pipeline = table.mesh, table.pipeline
    schedule = f'train.pipeline.schedule = "{pipeline.schedule}"'
    if mesh.pp == 1:
        return
    pipeline.stage_layers(config.num_layers, mesh.pp)
    # torch takes the graph of a layer apart to do the products for inputs before those for weights.
    if pipeline.splits_backward and table.activation_checkpointing == "selective":
        raise RecipeError(
            f'train.activation_checkpointing = "selective": {schedule} splits backward, and a layer whose products are '
            'partly kept cannot be gone through twice; expected "full" or "none", or the schedule "1f1b"'
        )
    if pipeline.splits_backward and table.compile:
        raise RecipeError(
            f"train.compile = true: {schedule} splits backward, and a compiled layer cannot be split; expected false, "
            'or the schedule "1f1b" or "interleaved"'
        )


def _check_experts(table: TrainTable, config: ModelConfig) -> None:
    ep, experts = table.mesh.ep, config.experts
    if experts is None:
        if ep > 1:
            raise RecipeError(f"train.parallel.ep = {ep}: expected 1, the model has no experts")
        return
    if experts.num_experts % ep:
        raise RecipeError(f"train.parallel.ep = {ep}: it must divide the model's experts, {experts.num_experts}")
    if ep > 1 and table.zero == 0:
        raise RecipeError(
            f"train.zero = 0: expected 1, 2 or 3 with train.parallel.ep = {ep}: experts are spread over the ranks that "
            "share a model, and without sharding each has a whole one"
        )
    if table.compile:
        raise RecipeError(
            "train.compile = true: expected false with experts: the number of tokens of each changes with every batch"
        )
