"""What cannot be spread, found before anything starts. No torch here: a refusal should not wait for it."""

from __future__ import annotations

from typing import Final

from lineage.recipe import RecipeError
from trainer.model.config.description import ModelConfig
from trainer.options import TrainTable
from trainer.recipe_tables.parallelism import ContextTable, Mesh, OverlapTable, PipelineTable

FLOAT8_MULTIPLE: Final = 16
"""Both sides of a matrix that float8 products take, as one rank has it."""


def takes_float8(inputs: int, outputs: int) -> bool:
    """Whether the product with a layer's matrix that has these sides on one rank can be a float8 one."""
    return inputs % FLOAT8_MULTIPLE == 0 and outputs % FLOAT8_MULTIPLE == 0


def check_layout(table: TrainTable, config: ModelConfig) -> None:
    """RecipeError where this model cannot be spread so; the message names the key, the value and what is
    expected."""
    mesh, pipeline = table.mesh, table.pipeline
    check_mesh(mesh, config, table.seq_len, table.context)
    if mesh.pp > 1:
        pipeline.stage_layers(config.num_layers, mesh.pp)
        check_split_backward(pipeline, table.activation_checkpointing, compiled=table.compile)
    _check_experts(table, config)
    if table.overlap.async_tp and not (table.compile and mesh.tp > 1):
        raise RecipeError(
            "train.overlap.async_tp = true: expected train.compile = true and train.parallel.tp above 1 (it"
            f" is {mesh.tp}): the compiler takes tensor parallel's exchanges apart"
        )
    if table.dtype == "float8" and table.float8.emulate and table.compile:
        raise RecipeError(
            "train.compile = true: expected false with train.float8.emulate = true, which is not compiled"
        )


def check_overlap(table: OverlapTable, device_type: str) -> None:
    """RecipeError where what runs on GPUs alone is asked of another device."""
    if device_type == "cuda":
        return
    if table.async_tp:
        raise RecipeError(
            f"train.overlap.async_tp = true: this is a {device_type}, and it needs NVIDIA GPUs with NVLink"
        )
    if table.prefetch_layers > 1:
        raise RecipeError(
            f"train.overlap.prefetch_layers = {table.prefetch_layers}: this is a {device_type}, which gathers"
            " nothing beside computing; expected 1, or a GPU"
        )


def check_mesh(mesh: Mesh, config: ModelConfig, seq_len: int, context: ContextTable) -> None:
    """RecipeError where tensor, context or expert parallel do not divide the model or its sequences."""
    _check_tensor(mesh, config, seq_len)
    _check_context(mesh, seq_len, context)
    if mesh.ep > 1 and config.experts is None:
        raise RecipeError(f"train.parallel.ep = {mesh.ep}: expected 1, the model has no experts")
    if config.experts is not None and config.experts.num_experts % mesh.ep:
        raise RecipeError(
            f"train.parallel.ep = {mesh.ep}: it must divide the model's experts, {config.experts.num_experts}"
        )


def _check_tensor(mesh: Mesh, config: ModelConfig, seq_len: int) -> None:
    divided = {
        "heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "hidden": config.hidden,
        "vocabulary": config.vocab_size,
    }
    for what, number in divided.items():
        if number % mesh.tp:
            raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide the model's {what}, {number}")
    if seq_len % mesh.tp:
        raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide train.seq_len, {seq_len}")


def _check_context(mesh: Mesh, seq_len: int, context: ContextTable) -> None:
    if mesh.cp == 1:
        return
    if seq_len % (mesh.cp * mesh.tp):
        raise RecipeError(
            f"train.parallel.cp = {mesh.cp}: with tp = {mesh.tp} it must divide train.seq_len, {seq_len}"
        )
    if context.balance == "zigzag" and seq_len % (2 * mesh.cp):
        raise RecipeError(
            f'train.context.balance = "zigzag": 2 x cp = {2 * mesh.cp} must divide train.seq_len, {seq_len}; '
            'set balance = "none"'
        )


def check_split_backward(pipeline: PipelineTable, recompute: str, *, compiled: bool) -> None:
    """RecipeError where the schedule splits a backward pass that cannot be split."""
    if not pipeline.splits_backward:
        return
    schedule = f'train.pipeline.schedule = "{pipeline.schedule}"'
    # torch takes the graph of a layer apart to do the products for inputs before those for weights.
    if recompute == "selective":
        raise RecipeError(
            f'train.activation_checkpointing = "selective": {schedule} splits backward, and a layer whose'
            f" products are "
            'partly kept cannot be gone through twice; expected "full" or "none", or the schedule "1f1b"'
        )
    if compiled:
        raise RecipeError(
            f"train.compile = true: {schedule} splits backward, and a compiled layer cannot be split;"
            f" expected false, "
            'or the schedule "1f1b" or "interleaved"'
        )


def _check_experts(table: TrainTable, config: ModelConfig) -> None:
    ep = table.mesh.ep
    if config.experts is None:
        return
    if ep > 1 and table.zero == 0:
        raise RecipeError(
            f"train.zero = 0: expected 1, 2 or 3 with train.parallel.ep = {ep}: experts are spread over the"
            " ranks that share a model, and without sharding each has a whole one"
        )
    if table.compile:
        raise RecipeError(
            "train.compile = true: expected false with experts: the number of tokens of each changes with every batch"
        )
