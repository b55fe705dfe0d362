"""Export a corpus for other tools, or a checkpoint as safetensors in the layout of transformers.

A folder with index.json is the output of a data run: the command exports its deduplicated, kept documents in
the given --format. A folder with model.json is the output of a training run: the command exports a checkpoint
as safetensors with config.json and the tokenizer.

sluice export OUT --format megatron --to DIR              .bin and .idx: `--data-path DIR/web/00000` in Megatron-LM
sluice export OUT --format hf --to DIR --split train=0.99,test=0.01
sluice export OUT --format jsonl --to DIR --name texts    DIR may be on disk, s3://, gs://, az:// or hf://

The lineage of OUT records the export (view `exports`): a purge of OUT cleans it too, and sluice verify checks
it. After a kill the same call continues; after a purge it rewrites the changed files. The bytes depend on OUT
and on these options, not on the number of processors.

sluice export RUN_OUTPUT --to DIR             the newest checkpoint
sluice export RUN_OUTPUT --step 200 --to DIR
sluice export RUN_OUTPUT --average 5 --to DIR    the mean of the last five checkpoints
sluice export RUN_OUTPUT --ema --to DIR       the moving average that train.optimizer.ema keeps
sluice export RUN_OUTPUT --tokenizer my.tiktoken --to DIR
sluice export --check DIR                     reads such a folder back and compares it with its run

A run records only the name and hash of a tokenizer file: --tokenizer gives the file itself. Without it the
export has weights only.

--check compares every tensor with the checkpoint bit for bit, config.json, generation_config.json, the recorded
hash and the tokenizer's ids, and prints a line for each. Exit code 1 if one differs. Name RUN_OUTPUT too
if the run has moved."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lineage.index.output_index import INDEX_FILE, TokenizerIdentity, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, count
from pipeline.cli.printing import print_json
from pipeline.terminal import visible

if TYPE_CHECKING:
    from lineage.store.rows import ExportRow

_OF_CORPORA = (
    "format",
    "source",
    "split",
    "name",
    "dtype",
    "tokens",
    "file_documents",
    "copy",
    "num_cpus",
    "address",
)
_OF_CHECKPOINTS = ("step", "tokenizer", "average", "ema")


def configure(parser: argparse.ArgumentParser) -> None:
    from pipeline.export.formats.names import FORMAT_NAMES
    from pipeline.export.request import DTYPES

    parser.add_argument(
        "out", nargs="?", metavar="OUT|RUN_OUTPUT", help="the output of a data run, or of a training run"
    )
    parser.add_argument(
        "--to",
        metavar="DIR",
        help="the folder to write; for a corpus also s3://, gs://, az://, hf://",
    )
    add_json(parser)
    corpus = parser.add_argument_group("options for a corpus")
    corpus.add_argument(
        "--format",
        choices=FORMAT_NAMES,
        help="texts: jsonl, parquet, hf, nanochat, mds; tokens: megatron,"
        " olmo, llmc, litdata; the crawl's records: warc",
    )
    corpus.add_argument("--source", nargs="+", metavar="NAME", help="only documents of these sources (all)")
    corpus.add_argument(
        "--split",
        metavar="NAME=SHARE,…",
        help="splits by a hash of the document id, for example train=0.99,validation=0.01 (none)",
    )
    corpus.add_argument("--name", help="the name of the export in lineage (the last part of DIR)")
    corpus.add_argument(
        "--dtype",
        choices=DTYPES,
        help="the token dtype (auto: uint16 if the vocabulary fits); formats without uint32 get int32",
    )
    corpus.add_argument(
        "--tokens", action="store_true", default=None, help="export tokens instead of texts (mds)"
    )
    corpus.add_argument(
        "--file-documents",
        type=count,
        metavar="N",
        help="maximum number of documents per file, unless one input file has more (100000)",
    )
    corpus.add_argument(
        "--copy",
        action="store_true",
        default=None,
        help="copy unchanged shards (default: hard links if DIR is on the same disk)",
    )
    corpus.add_argument("--num-cpus", type=count, metavar="N", help="number of processors (all)")
    corpus.add_argument(
        "--address",
        help='the Ray cluster: "auto" or "host:port"; "none": in this process, without Ray (a local Ray)',
    )
    checkpoint = parser.add_argument_group("options for a checkpoint")
    checkpoint.add_argument("--step", type=int, metavar="T", help="the checkpoint of T steps (the newest)")
    checkpoint.add_argument(
        "--average",
        type=count,
        metavar="N",
        help="the mean of N checkpoints, up to the chosen one (1)",
    )
    checkpoint.add_argument(
        "--ema",
        action="store_true",
        default=None,
        help="the moving average of the weights (train.optimizer.ema) instead of the weights",
    )
    checkpoint.add_argument("--tokenizer", metavar="FILE", help="the tokenizer file of the training data")
    checkpoint.add_argument(
        "--check", metavar="DIR", help="read an exported folder back and compare it, instead of writing one"
    )


def run(options: argparse.Namespace) -> int:
    if options.check is not None:
        _refuse(options, ("to", *_OF_CORPORA, *_OF_CHECKPOINTS), f"--check {options.check} writes nothing")
        return _check(Folder(options.check), options)
    if options.out is None or options.to is None:
        raise RecipeError(
            "expected an output and --to DIR, the folder to write; or --check DIR, one to compare"
        )
    output = Folder(options.out)
    if options.format is not None or output.exists(INDEX_FILE):
        return _export_corpus(output, options)
    _refuse(options, _OF_CORPORA, f"{options.out} is no output of a data run (it has no {INDEX_FILE})")
    return _export_checkpoint(output, options)


def _check(folder: Folder, options: argparse.Namespace) -> int:
    from pipeline.export.read_back import check_export

    parts = list(check_export(folder, options.out))
    holds = not any(part.why for part in parts)
    if options.json:
        rows = [{"part": part.what, "holds": not part.why, "why": part.why or None} for part in parts]
        print_json({"folder": folder.url, "holds": holds, "parts": rows})
    else:
        for part in parts:
            print(
                visible(
                    f"{'DIFFERS' if part.why else 'equal':7}  {part.what}{': ' if part.why else ''}{part.why}"
                )
            )
    return 0 if holds else 1


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise RecipeError(f"--{name.replace('_', '-')}: {why}, so this option does not apply")


def _export_corpus(out: Folder, options: argparse.Namespace) -> int:
    from pipeline.export.formats.names import FORMAT_NAMES
    from pipeline.export.process import corpus_export, export, on_ray
    from pipeline.export.request import DEFAULT_FILE_DOCUMENTS
    from pipeline.phases.progress import ProgressReporter
    from pipeline.recipe.tables import RayTable

    if options.format is None:
        raise RecipeError(
            f"{options.out} is the output of a data run: --format says how its documents are exported,"
            f" one of {', '.join(FORMAT_NAMES)}"
        )
    if not out.exists(INDEX_FILE) and out.exists("model.json"):
        raise RecipeError(
            f"--format: {options.out} is the output of a training run, whose checkpoints have one format"
        )
    _refuse(options, _OF_CHECKPOINTS, f"{options.out} is the output of a data run")
    if options.num_cpus == 0:
        raise RecipeError("--num-cpus 0: expected at least 1")
    asked = corpus_export(
        out,
        Folder(options.to),
        format=options.format,
        name=options.name,
        sources=options.source or (),
        split=options.split,
        dtype=options.dtype or "auto",
        tokens=bool(options.tokens),
        file_documents=DEFAULT_FILE_DOCUMENTS if options.file_documents is None else options.file_documents,
        copy=bool(options.copy),
    )
    ray = RayTable(address=options.address or "local", num_cpus=options.num_cpus)
    done = export(asked, on_ray(ray, ProgressReporter()))
    row = done.row
    if options.json:
        print_json(
            {
                "name": row.name,
                "format": row.format,
                "place": row.place,
                "version": row.version,
                "at": row.at,
                "num_documents": row.num_documents,
                "num_tokens": row.num_tokens,
                "num_files": row.num_files,
                "bytes": row.bytes,
                "was_done": done.was_done,
            }
        )
        return 0
    tokens = f", {row.num_tokens:,} tokens" if row.num_tokens else ""
    was = "is there already" if done.was_done else "done"
    print(
        visible(
            f"Export {row.name} ({row.format}) {was}: {row.num_documents:,} documents{tokens} in"
            f" {row.num_files:,} files, {row.bytes:,} bytes, at {row.place}"
        )
    )
    for line in how_to_read(row, read_index(out).tokenizer):
        print(visible(line))
    return 0


def how_to_read(row: ExportRow, tokenizer: TokenizerIdentity) -> Iterator[str]:
    """What whoever loads the copy needs to know, a line each."""
    from pipeline.export.formats.registry import FORMATS

    if row.num_tokens:
        yield (
            f"Its tokens are those of {tokenizer.name}: {tokenizer.vocab_size:,} ids, of which"
            f" {tokenizer.eot_id} ends a document."
        )
    if to_load := FORMATS[row.format].to_load:
        yield to_load.format(place=row.place)


def _export_checkpoint(output: Folder, options: argparse.Namespace) -> int:
    from pipeline.export.checkpoint import export_checkpoint

    if options.average == 0:
        raise RecipeError("--average 0: expected at least 1")
    done = export_checkpoint(
        output,
        options.to,
        step=options.step,
        tokenizer=options.tokenizer,
        average=options.average or 1,
        ema=bool(options.ema),
    )
    if done.tokenizer_files and "tokenizer.json" not in done.tokenizer_files:
        line = (
            f"without tokenizer.json: the tokenizers library gives other ids than tiktoken for {done.tokenizer}, so"
            " transformers cannot open it"
        )
        print(visible(line), file=sys.stderr)
    elif done.split_by is not None:
        line = (
            f"transformers' AutoTokenizer splits texts of a {done.split_by} folder by a rule of its own, whatever"
            f" tokenizer.json says: unless {done.tokenizer} has that rule, open it with PreTrainedTokenizerFast"
        )
        print(visible(line), file=sys.stderr)
    if not done.tokenizer_files:
        line = f"without the tokenizer: {done.tokenizer} is not here; --tokenizer says where its file lies"
        print(visible(line), file=sys.stderr)
    if options.json:
        print_json(
            {
                "step": done.step,
                "folder": done.folder,
                "read": done.read,
                "averaged_steps": list(done.averaged_steps),
                "ema": bool(options.ema),
            }
        )
    else:
        what = f"checkpoint of step {done.step}"
        if done.averaged_steps:
            what = f"mean of the checkpoints of steps {', '.join(map(str, done.averaged_steps))}"
        if options.ema:
            what = f"moving average in the {what}"
        print(visible(f"{done.folder}: {what}, read from {done.read}"))
    return 0
