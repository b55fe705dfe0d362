"""Estimate what a run costs before it starts: of a training recipe memory, time and cost on the machines of its
[plan]; of a data recipe (with [[source]]) documents, tokens, processor hours, memory, disk, requests and money.

  sluice plan recipes/crawl.toml
  sluice plan recipes/crawl.toml --cores 64 --price-core-hour 0.034 --json
  sluice plan recipes/crawl.toml --sample-bytes 100000000 --seed 7 --keep

Data recipe: a random sample of the inputs (16 MiB, of small inputs a quarter) is read, carried through the recipe's
steps in this process, and extrapolated by bytes. Each figure has a 90% interval; --json gives
{name: {value, low, high}} with processor_hours.<step> for each step, memory, disk and output in bytes. Near-duplicates
are extrapolated from the repetitions within the sample, which the last lines say. A price of 0 leaves an item out.
--keep puts the prediction into OUT/work: the run brings it up to date while it reads, and its report shows it
beside what came. No file is written otherwise.

Training recipe:
  sluice plan recipes/train.toml
  sluice plan recipes/train.toml --set train.model=8B --set train.workers=64 --set train.parallel.dp_shard=64 \\
      --set train.global_batch=512 --set train.seq_len=8192 --set plan.gpu=H200

  sluice plan recipes/train.toml --roofline        bounds of each product; experts; tokens; loading
  sluice plan recipes/train.toml --search          all layouts for this model and number of processes, fastest first
  sluice plan recipes/train.toml --simulate        goodput under failures, spares, load on storage
  sluice plan recipes/train.toml --measure --to device.json  measure this device; then --set plan.measured=FILE
  sluice plan --measure --to device.json           the same for a model of 125 million parameters

The command starts nothing and needs no GPU (--measure alone uses the device). If train.data has no finished
output yet, the vocabulary is that of the model's config.json, or 128,256 (Llama 3) for a named size. Every
figure is an estimate; trainer/planning has its formula and source. Exit code 0 even if the model does not fit;
1 if --search finds no layout that fits.

--search keeps the model, seq_len, global_batch, dtype, [train.context] and the number of processes. It tries
every mesh, micro-batch of 1, 2, 4 or 8, pipeline schedule, recomputation and ZeRO level. Rejected layouts are
counted by reason (too little memory, tensor parallel across nodes, not supported); --json lists each. The
first layout is printed as --set arguments.

--roofline compares the operations per byte of each product with the ridge of its dtype. It also shows the
number of experts from which an all-to-all takes longer than the all-reduce of tensor parallel, the optimal
tokens and the loss of a scaling law for this model size (a forecast: fitted on other data and another
tokenizer), and the bytes that the loader must read.

--simulate draws 200 runs of the recipe's fleet (any size: --set train.workers). Failures follow the rate of
[plan] and Llama 3's published causes; each run has the optimal cadence, restarts or recovery in place, spares
and repair. The output has the spread of goodput and the closed-form value, then the storage load of all
nodes (requests, bytes, names), compared with storage tiers.
"""

from __future__ import annotations

import argparse

from lineage.recipe import RecipeError, read_toml
from pipeline.cli.arguments import add_json, add_recipe
from pipeline.cli.corpus import price
from pipeline.cli.training import plan


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "a data run or a training run (optional with --measure)", is_optional=True)
    add_json(parser)
    price.configure(parser.add_argument_group("of a data recipe"))
    plan.configure(parser.add_argument_group("of a training recipe"))


def run(options: argparse.Namespace) -> int:
    is_data = options.recipe is not None and "source" in read_toml(options.recipe, options.overrides)
    wrong = (plan if is_data else price).given(options)
    if wrong:
        other, this = ("training", "data") if is_data else ("data", "training")
        raise RecipeError(f"{wrong} is of a {other} recipe: {options.recipe} is a {this} recipe")
    return price.run(options) if is_data else plan.run(options)
