"""Continue a prompt with a checkpoint, or with a folder of safetensors.

  sluice sample RUN_OUTPUT "The river rose until"
  sluice sample RUN_OUTPUT --step 1000 --tokens 200 "A prompt" "Another one"
  sluice sample DIR --temperature 0.8 --top-p 0.95 --seed 3 "Once"

The model runs in this process, on the first GPU or on the CPU, one prompt after the other. Without --temperature,
decoding is greedy, so the same command gives the same text. With --temperature, the same seed gives the same text.
Generation stops at the end-of-text token, after --tokens, or at the end of the model's context (train.seq_len, or
max_position_embeddings). Ctrl-C stops it.

  sluice sample RUN_OUTPUT --every 1000 "The river rose until" "Once"

With --every N, the command runs alongside a training run. It samples each checkpoint at a multiple of N steps when it
appears, prints the text and appends it to RUN_OUTPUT/samples.jsonl, until the run ends. The training run does not wait
for it. --device cpu keeps the GPUs free. Samples that the file already has are not repeated.

RUN_OUTPUT needs no export: the command reads its newest checkpoint, or that of --step. For many prompts or users,
serve the model: `sluice export RUN_OUTPUT --to DIR`, then `vllm serve DIR`."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, count
from pipeline.cli.printing import print_json
from pipeline.terminal import visible_lines
from trainer.attempts import attempts

if TYPE_CHECKING:
    from pipeline.training.sampling import Asked, SampledText
    from trainer.huggingface.opened import OpenedModel

_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_output",
        metavar="RUN_OUTPUT|DIR",
        help="the output of a training run, or a folder of safetensors",
    )
    parser.add_argument("prompts", metavar="PROMPT", nargs="+", help="the text to continue")
    parser.add_argument("--step", type=count, metavar="T", help="the checkpoint of T steps (the newest)")
    parser.add_argument(
        "--every",
        type=count,
        metavar="N",
        help="sample each checkpoint at a multiple of N steps while the run trains",
    )
    parser.add_argument(
        "--tokens", type=count, default=128, metavar="N", help="maximum number of new tokens (128)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="X",
        help="draw from the softmax of logits / X; 0: greedy (0)",
    )  # fmt: skip
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P",
        help="draw among the most likely tokens whose probabilities add up to P (1)",
    )  # fmt: skip
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="the seed of the sampling (0)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer file, if it is not found")
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        help="the dtype of weights and computation (that of the model)",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (the first GPU, else the CPU)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.training.sampling import decoding_of

    asked = decoding_of(options.temperature, options.top_p, options.seed)
    try:
        if options.every is not None:
            return _follow(options, asked)
        opened, found = _sampled(options, options.step, asked)
    except KeyboardInterrupt:
        _write("\n")
        return _INTERRUPTED
    if options.json:
        step = None if opened.checkpoint is None else opened.checkpoint.step
        print_json({"place": opened.place, "step": step, "samples": list(map(asdict, found))})
    return 0


def _sampled(
    options: argparse.Namespace, step: int | None, asked: Asked
) -> tuple[OpenedModel, list[SampledText]]:
    """The texts of all prompts, which are printed as they come."""
    from pipeline.training.opened import open_text_model
    from pipeline.training.sampling import Sampling, device_named

    model = open_text_model(
        options.run_output,
        step=step,
        tokenizer=options.tokenizer,
        device=device_named(options.device),
        dtype=options.dtype,
    )
    found = []
    for prompt in options.prompts:
        sampling = Sampling(model, prompt, options.tokens, asked)
        pieces = iter(sampling)
        first = next(pieces, "")  # a prompt that is refused is not printed
        if not options.json:
            _write(prompt)
            for piece in chain((first,), pieces):
                _write(piece)
            _write("\n")
        deque(pieces, maxlen=0)
        assert sampling.result is not None
        found.append(sampling.result)
    return model.opened, found


def _follow(options: argparse.Namespace, asked: Asked) -> int:
    from pipeline.training.followed import SampleLine, SamplesFile, followed

    for name in ("step", "json"):
        if getattr(options, name):
            raise RecipeError(f"--{name}: with --every each checkpoint is sampled into a file; leave one out")
    if options.every == 0:
        raise RecipeError("--every 0: expected a number of steps, 1 or more")
    output = Folder(options.run_output)
    if not attempts(output):
        raise RecipeError(f"--every: {options.run_output} is not the output of a training run that has begun")
    file = SamplesFile(output)
    for checkpoint in followed(output, options.every):
        if file.has(checkpoint, options.prompts, options.tokens, asked):
            continue
        _write(f"step {checkpoint.step}\n")
        _, found = _sampled(options, checkpoint.step, asked)
        file.add([
            SampleLine(
                checkpoint.step, checkpoint.attempt, each.prompt, each.text, each.ended, len(each.tokens), *asked
            )
            for each in found
        ])  # fmt: skip
    return 0


def _write(piece: str) -> None:
    sys.stdout.write(visible_lines(piece))
    sys.stdout.flush()
