"""Text from a checkpoint, or from a folder of safetensors: how a model continues a prompt.

  sluice sample RUN_OUTPUT "The river rose until"
  sluice sample RUN_OUTPUT --step 1000 --tokens 200 "A prompt" "Another one"
  sluice sample DIR --temperature 0.8 --top-p 0.95 --seed 3 "Once"

The model runs in this process, on the first GPU or on the CPU, one prompt after the other. Without --temperature the
likeliest token is taken each time, so equal calls give equal texts; with it, equal seeds do. A text ends at
the token that ends documents, after --tokens, or at the end of the model's context (train.seq_len, or
max_position_embeddings). Ctrl-C ends it; what was printed stays.

RUN_OUTPUT needs no export: its newest checkpoint is read, or that of --step. Many prompts or users: export
the checkpoint and serve it, `sluice export RUN_OUTPUT --to DIR`, then `vllm serve DIR`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from lineage.recipe import RecipeError
from pipeline.cli.arguments import add_json, count
from pipeline.cli.printing import print_json
from pipeline.terminal import visible_lines

_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_output",
        metavar="RUN_OUTPUT|DIR",
        help="the output of a training run, or a folder of safetensors",
    )
    parser.add_argument("prompts", metavar="PROMPT", nargs="+", help="the text to continue")
    parser.add_argument("--step", type=count, metavar="T", help="the checkpoint of T steps (the newest)")
    parser.add_argument("--tokens", type=count, default=128, metavar="N", help="tokens at most (128)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="X",
        help="draw from the softmax of logits / X; 0: the likeliest token (0)",
    )  # fmt: skip
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P",
        help="draw among the likeliest tokens that together have the share P (1)",
    )  # fmt: skip
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer's file, if it is not at hand")
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        help="of weights and arithmetic (the model's own)",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (the first GPU, else the CPU)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.training.opened import open_text_model
    from pipeline.training.sampling import Sampling, device_named

    model = open_text_model(
        options.run_output,
        step=options.step,
        tokenizer=options.tokenizer,
        device=device_named(options.device),
        dtype=options.dtype,
    )
    from trainer.huggingface.generation import Decoding

    decoding = Decoding(temperature=options.temperature, top_p=options.top_p, seed=options.seed)
    found = []
    try:
        for prompt in options.prompts:
            sampling = Sampling(model, prompt, options.tokens, decoding)
            if not options.json:
                _write(prompt)
            for piece in sampling:
                if not options.json:
                    _write(piece)
            if not options.json:
                _write("\n")
            assert sampling.result is not None
            found.append(asdict(sampling.result))
    except RecipeError:
        if not options.json:
            _write("\n")
        raise
    except KeyboardInterrupt:
        _write("\n")
        return _INTERRUPTED
    if options.json:
        opened = model.opened
        step = None if opened.checkpoint is None else opened.checkpoint.step
        print_json({"place": opened.place, "step": step, "samples": found})
    return 0


def _write(piece: str) -> None:
    sys.stdout.write(visible_lines(piece))
    sys.stdout.flush()
