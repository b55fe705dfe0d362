"""`sluice demo`: the whole way on a crawl of our own, from crawl record to training step and out again, with
the proof.

1. crawl      about 3,000 documents in six languages, with planted truth
2. run        the data pipeline; planted against found
3. train      a tiny model on two workers
4. trace      a leaked benchmark question: from its crawl record to the steps that saw it
5. purge      scan for the benchmark, and for what training read of it; take it out
6. forget     the training steps since it was first read, again without it; a certificate, and its check
7. prove      verify, and a search of every byte
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w
from rich.console import Console
from rich.table import Table

from lineage.purge.execution import PurgeRequest, PurgeResult, apply
from lineage.purge.plan import PurgeMatch
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.document_history import DocumentHistory
from lineage.verify.output import verify
from lineage.verify.problems import Verification
from pipeline import process
from pipeline.cluster.session import ray_session
from pipeline.demo.check import PlantOutcome, check_truth, summary_kinds
from pipeline.demo.crawl import KEPT_LANGUAGES, LEAK, Truth, make_crawl
from pipeline.inspect.hooks import apply_hooks, plan_hooks, verify_hooks
from pipeline.inspect.scan.evidence import ScanEvidence, write_evidence
from pipeline.inspect.scan.scan import ScanRequest, scan
from pipeline.inspect.scan.scanned_runs import run_lines
from pipeline.inspect.trace.document_history import print_history
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load
from stages.tokens.tokenizer import train_bpe

MARKER = "sluice-demo.json"
"""Says that a folder is a demo's: only such a folder is emptied for a new one."""

_VOCAB = 1536
_RUN = "demo-train"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPaths:
    """Where things lie in the demo's folder."""

    folder: Path

    @property
    def crawl(self) -> Path:
        return self.folder / "crawl"

    @property
    def out(self) -> Folder:
        return Folder(str(self.folder / "out"))

    @property
    def training(self) -> Folder:
        return Folder(str(self.folder / "training"))

    def recipe(self, name: str) -> Path:
        return self.folder / f"{name}.toml"


def tour(folder: Path, screen: Console, num_pages: int = 3000, steps: int = 60) -> dict[str, object]:
    """Go the whole way in `folder`; what was found, as plain values. `ok` says whether all of it was as it
    must be."""
    places, reporter = _empty(folder), ProgressReporter()
    screen.rule("1  A small crawl with planted truth")
    with reporter.waiting("writing the crawl"):
        truth = make_crawl(places.crawl, num_pages)
    screen.print(f"{truth.num_pages:,} documents in {places.crawl}, {len(truth.plants)} of them planted")
    with reporter.waiting("learning a tokenizer from the posts"):
        _write_recipes(places, steps)
    with ExitStack() as stack:
        with reporter.waiting("starting Ray"):
            stack.enter_context(ray_session("local", num_cpus=2))
        screen.rule("2  The data pipeline")
        summary = process.run(load(places.recipe("data")), reporter)
        found = check_truth(places.out, truth)
        _show_truth(screen, found)
        screen.rule("3  Training")
        with reporter.waiting("two workers start and train"):
            trained = _train(places, screen)
        screen.rule("4  From crawl record to training step")
        with reporter.waiting("looking the leaked page up"):
            history = _leaked_history(places, truth)
        print_history(screen, places.out.url, history, 5)
        screen.rule("5  Taking the leaked benchmark out")
        evidence, applied = _purge(places, screen, reporter)
        screen.rule("6  Out of the model too")
        with reporter.waiting("going back and training on, without what was purged"):
            certified = _forget(places, screen)
    screen.rule("7  The proof")
    with reporter.waiting("verifying every file"):
        verification = verify(places.out, verify_hooks(places.out))
    with reporter.waiting("searching every byte"):
        left = search_bytes(places.folder / "out", _leaked_texts(places, truth))
    _show_proof(screen, verification, left)
    screen.print(f"\nReport: {places.out.at('report.html')}")
    planted, met = summary_kinds(found)
    return {
        "folder": str(folder),
        "num_documents": summary.num_documents,
        "num_tokens": summary.num_tokens,
        "planted": planted,
        "found": met,
        "truth": [asdict(row) for row in found],
        "training": trained,
        "traced": history.as_json(5),
        "scan": {"found_items": list(evidence.found_items), "num_found": evidence.num_found},
        "purge_id": applied.purge_id,
        "purged_documents": applied.plan.num_documents,
        "certificate": certified.file,
        "certified": certified.holds,
        "verified": not verification.problems,
        "texts_left": left,
        "ok": planted == met and certified.holds and not verification.problems and not left,
    }


def _empty(folder: Path) -> DemoPaths:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise RecipeError(f"--out {folder} is not empty and is no earlier demo: name a new folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("{}\n")
    return DemoPaths(folder=folder.resolve())


def _write_recipes(places: DemoPaths, steps: int) -> None:
    """The two recipes, and a tokenizer learnt from the forum posts: a tiny model gets a tiny vocabulary."""
    with gzip.open(places.crawl / "boards-00000.jsonl.gz", "rt", encoding="utf-8") as posts:
        ranks = train_bpe([json.loads(line)["text"] for line in posts], _VOCAB)
    tokenizer = places.folder / "demo.tiktoken"
    tokenizer.write_bytes(ranks)
    patterns = {"web": "web-*.warc.gz", "news": "news-*.warc.gz", "boards": "boards-*.jsonl.gz"}
    data = {
        "run": {"name": "demo", "output": places.out.url},
        "source": [
            {"name": name, "inputs": [str(places.crawl / pattern)]} for name, pattern in patterns.items()
        ],
        "language": {"keep": list(KEPT_LANGUAGES)},
        "tokenize": {"encoding": str(tokenizer)},
    }
    training = {
        "run": {"name": _RUN},
        "train": {
            "data": places.out.url,
            "output": places.training.url,
            "model": "debug",
            "seq_len": 512,
            "global_batch": 16,
            "micro_batch": 4,
            "steps": steps,
            "workers": 2,
            "record_batches": True,
            "validation": 0.02,
            "optimizer": {"lr": 3e-3, "warmup_steps": 10},
            "checkpoint": {"every": max(1, steps // 3)},
        },
    }
    for name, plain in (("data", data), ("train", training)):
        places.recipe(name).write_text(tomli_w.dumps(plain), encoding="utf-8")


def _show_truth(screen: Console, found: Sequence[PlantOutcome]) -> None:
    table = Table(box=None, title="planted against found", title_justify="left")
    for name, justify in (("plant", "left"), ("planted", "right"), ("found", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for row in found:
        table.add_row(
            row.kind, str(row.planted), str(row.found), style=None if row.planted == row.found else "bold red"
        )
    screen.print(table)
    for line in (line for row in found for line in row.astray):
        screen.print(f"  astray: {line}", markup=False)


def _train(places: DemoPaths, screen: Console) -> dict[str, object]:
    from trainer.launch import train_on_ray
    from trainer.options import load_train_recipe
    from trainer.run.preflight import check_training

    recipe = load_train_recipe(places.recipe("train"))
    check_training(recipe)
    result = train_on_ray(recipe)
    screen.print(
        f"{result.step} steps, loss {result.loss:.3f}" if result.loss is not None else f"{result.step} steps"
    )
    return asdict(result)


def _leaked_history(places: DemoPaths, truth: Truth) -> DocumentHistory:
    """The leaked page that training saw most often."""
    tracer = make_tracer(places.out.url)
    histories = [tracer.by_url(plant.url)[0] for plant in truth.plants if plant.kind == LEAK]
    return max(histories, key=lambda history: len(history.exposures))


def _purge(
    places: DemoPaths, screen: Console, reporter: ProgressReporter
) -> tuple[ScanEvidence, PurgeResult]:
    request = ScanRequest(against=(str(places.crawl / "benchmark.jsonl"),), runs=())
    evidence = scan(places.out, request, reporter)
    write_evidence(evidence, str(places.folder / "scan.json"))
    screen.print(
        f"{len(evidence.found_items)} of {evidence.num_items} questions found in {evidence.num_found} documents"
    )
    for line in run_lines(evidence.runs or ()):
        screen.print(line, markup=False, soft_wrap=True)
    match = PurgeMatch(kind="scan", values=tuple(document.doc_id for document in evidence.documents))
    order = PurgeRequest(match=match, by="demo", reason="leaked benchmark")
    with reporter.waiting("purging it"):
        applied = apply(places.out, order, plan_hooks(places.out), apply_hooks())
    screen.print(
        f"purged {applied.plan.num_documents} documents, {applied.plan.num_tokens:,} tokens, as"
        f" {applied.purge_id}"
    )
    return evidence, applied


@dataclass(frozen=True, slots=True, kw_only=True)
class _Certificate:
    """Where the certificate lies, and whether every line of it holds."""

    file: str
    holds: bool


def _forget(places: DemoPaths, screen: Console) -> _Certificate:
    """Go back before the first reading of what was purged, do the steps since again, and certify that."""
    from pipeline.report.training.certificate import publish_page
    from trainer.checkpoint.digest import weights_digest
    from trainer.evidence.certificate import certify_replay
    from trainer.evidence.check import check_certificate
    from trainer.launch import train_on_ray
    from trainer.options import load_train_recipe
    from trainer.recovery.forget import forget

    recipe = load_train_recipe(places.recipe("train"))
    asked = forget(recipe, ["all"], restart=True)
    for line in asked.lines:
        screen.print(line, markup=False, soft_wrap=True)
    if asked.trains:
        train_on_ray(recipe)
    name, row = certify_replay(places.training, asked.purges, weights_digest)
    publish_page(places.training, name, row)
    lines = check_certificate(places.training.read(name), name, places.training, digest=weights_digest)
    holds = all(line.holds for line in lines)
    readings = sum(purge["readings"] for purge in row["purges"])
    screen.print(
        f"certificate {places.training.at(name)}: {readings} readings, 0 applied;"
        f" {sum(line.holds for line in lines)} of {len(lines)} lines of its check hold",
        markup=False,
        soft_wrap=True,
    )
    return _Certificate(file=places.training.at(name), holds=holds)


def _leaked_texts(places: DemoPaths, truth: Truth) -> list[str]:
    questions = (places.crawl / "benchmark.jsonl").read_text(encoding="utf-8").splitlines()
    num = sum(plant.kind == LEAK for plant in truth.plants)
    return [json.loads(line)["text"] for line in questions[:num]]


def search_bytes(folder: Path, texts: Sequence[str]) -> list[str]:
    """Which of these texts stand, as UTF-8 or as tokens, in any file below `folder`; Parquet is read as its
    values."""
    import pyarrow.parquet as pq

    from stages.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(load(folder.parent / "data.toml").tokenize.encoding)
    needles = {text: (text.encode(), tokenizer.encode(f" {text}")[2:-2].tobytes()) for text in texts}
    left = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix == ".parquet" and "_delta_log" not in path.parts:
            data += repr(pq.read_table(path).to_pydict()).encode()
        left += [
            f"{path}: {text[:60]}" for text, forms in needles.items() if any(form in data for form in forms)
        ]
    return left


def _show_proof(screen: Console, verification: Verification, left: Sequence[str]) -> None:
    screen.print(
        f"verify: {len(verification.problems)} problems in {verification.num_files} files,"
        f" {verification.num_documents:,} documents, {verification.num_tokens:,} tokens"
    )
    for problem in verification.problems[:10]:
        screen.print(f"  {problem}", markup=False)
    screen.print(f"search of every byte for the purged texts and their tokens: {len(left)} found")
    for line in left[:10]:
        screen.print(f"  {line}", markup=False)
