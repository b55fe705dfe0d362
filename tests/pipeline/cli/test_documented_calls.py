"""Every call of `sluice` that README, docs, recipes and --help print: it parses, and it works as printed.

The documents' names (OUT, recipes/crawl.toml, ID, …) stand for a small world of files below a temporary
folder, in which each call runs as it is printed."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from lineage.storage.folder import Folder
from pipeline.cli.commands import COMMANDS, parse_command, split_call
from pipeline.cli.main import main
from pipeline.cli.training import plan
from pipeline.demo.pages import render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from pipeline.record.record import statements_template
from tests.support.checkout import ROOT
from tests.support.inputs.site_files import SiteResponse, write_site_file
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.training.plans import DEEPSEEK_V3
from tests.support.training.traces import NsightExport
from trainer.run import measure

DOCUMENTS = (
    "README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    *sorted(f"recipes/{path.name}" for path in (ROOT / "recipes").glob("*.toml")),
)
LINE = re.compile(r"^[ #]*(sluice [a-z].*)$")
INLINE = re.compile(r"`sluice ([^`]+)`")
EXPLAINED = re.compile(r"(?: {2,}| +#).*$")
"""What follows a call on its line: two spaces and words, or a comment."""
CLUSTER = {"submit", "jobs"}
LATER = {"mix run", "mix optimize", "mix report", "mix doremi"}
"""Minutes of proxy runs, which tests/trainer/mix/ carry out; here they are parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A printed call, and where it stands."""

    place: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)}"

    @property
    def command(self) -> str:
        return split_call(self.words)[0]

    @property
    def action(self) -> str:
        return " ".join(self.words[:2])


def texts() -> Iterator[tuple[str, str]]:
    for name in DOCUMENTS:
        yield name, (ROOT / name).read_text(encoding="utf-8")
    for name, (module, _) in COMMANDS.items():
        yield f"sluice {name} --help", importlib.import_module(module).__doc__ or ""


def printed_calls() -> list[Call]:
    """Every call, those that only name a command left out."""
    found: dict[tuple[str, ...], Call] = {}
    for place, text in texts():
        lines = re.sub(r" *\\\n[ #]*", " ", text).split("\n")
        told = [match[1].removeprefix("sluice ") for line in lines if (match := LINE.match(line))]
        told += [" ".join(match[1].split()) for match in INLINE.finditer(text)]
        for line in told:
            words = tuple(
                shlex.split(
                    EXPLAINED.sub("", line).replace("[", " ").replace("]", " ")
                    if "[-" in line
                    else EXPLAINED.sub("", line)
                )
            )
            if len(words) > 1:
                found.setdefault(words, Call(place=place, words=words))
    return list(found.values())


CALLS = printed_calls()


def numbered(words: tuple[str, ...]) -> list[str]:
    """The words with a number where a letter stands for one."""
    numeric = ("--from-step", "--offset", "--element", "--step", "--row", "--keep", "--parallel", "--vocab")
    return [
        "1" if before in numeric and not word.isdigit() else word
        for before, word in zip(("", *words), words, strict=False)
    ]


def test_the_documents_hold_calls_of_every_command() -> None:
    assert {call.command for call in CALLS} >= COMMANDS.keys() - {"demo"}
    assert len(CALLS) > 50
    named = {match[1].split()[0] for _, text in texts() for match in INLINE.finditer(text)}
    assert not named - COMMANDS.keys()


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_every_value_of_a_printed_call_reaches_its_command(call: Call) -> None:
    options = parsed(numbered(call.words))
    if call.command == "submit":
        from pipeline.cli.submit import split_command

        parsed(split_command(options))


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options of a call, which hold every value that stands in it."""
    name, rest = split_call(words)
    options = parse_command(name, rest)
    expanded = getattr(options, "expanded", {})  # a path with ~ stands there as it is meant
    values = {expanded.get(word, word) for word in rest if not word.startswith("--")}
    assert not values - set(values_of(vars(options)))
    return options


def values_of(options: object) -> Iterator[str]:
    """Every value in parsed options, as it would be printed in a call."""
    match options:
        case dict():
            yield from values_of(list(options.values()))
        case list() | tuple():
            yield from chain.from_iterable(map(values_of, options))
        case _:
            yield str(options)


def lasts(call: Call) -> bool:
    """Whether a plan takes more than a few seconds: a search among hundreds of thousands of layouts."""
    return "--search" in call.words and not {"train.model=405B", "train.model=config.json"}.isdisjoint(
        call.words
    )


TINY = {"model": "debug", "seq_len": 32, "global_batch": 2}
"""What --measure is called for here."""

_link_once = functools.cache(measure._link)
_measured_once = functools.cache(measure.measure)
"""What a device does with a recipe, and the link between two processes, which load torch for it, do not
depend on how a call is printed."""


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, marks=pytest.mark.slow if lasts(call) else (), id=str(call))
        for call in CALLS
        if call.command == "plan"
    ],
)
def test_a_printed_plan_works_without_data(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    if "--measure" in call.words:  # at the size of a recipe its products take a minute
        monkeypatch.setattr(measure, "SECONDS", 0.0)
        monkeypatch.setattr(measure, "_link", _link_once)
        monkeypatch.setattr(measure, "measure", _measured_once)
        monkeypatch.setattr(plan, "_MEASURED", {**plan._MEASURED, **TINY})
        train = tmp_path / "recipes/train.toml"
        train.write_text(tomli_w.dumps({"run": {"name": "tiny"}, "train": {**plan._MEASURED}}))
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    monkeypatch.chdir(tmp_path)
    words = ["recipes/train.toml" if word == "RECIPE" else word for word in call.words]
    if "recipes/crawl.toml" in words:
        (inputs,) = make_tiny_crawl(tmp_path)["web"]
        words += ["--set", f"source.0.inputs={json.dumps([inputs])}"]
    code = main(words)
    assert code == 0, capsys.readouterr().err


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The folder in which calls run, and what their names stand for."""

    folder: Path
    names: dict[str, str]

    def words(self, call: Call) -> list[str]:
        """The call with real values for its names."""
        words: list[str] = []
        for before, word in zip(("", *call.words), call.words, strict=False):
            words.append(self._value(call, before, word))
        if call.command == "train" and "--forget" in words and "--restart" not in words:
            words.append("--restart")  # the first step of so small a run has read what was purged
        if call.command == "sample" and call.words[1] != "DIR":
            words += ["--tokenizer", "crawl/tiny.tiktoken"]  # a run records no place of a tokenizer's file
        if call.action in ("run recipes/crawl.toml", "train recipes/train.toml") and not _goes_back(call):
            # A new output for each call, and a training that takes seconds.
            target = f"out/again-{abs(hash(call.words))}"
            words += ["--set", f"{'run' if call.command == 'run' else 'train'}.output={target}"]
            words += ["--set", f"run.name={target}"] * (call.command == "train")
            words += ["--set", "train.steps=4"] * (call.command == "train")
        return words

    def _purge_id(self) -> str:
        out = Folder(str(self.folder / "out" / "crawl"))
        return str(query(out, "SELECT purge_id FROM purges ORDER BY at LIMIT 1").rows[0][0])

    def _value(self, call: Call, before: str, word: str) -> str:
        if word.startswith("--"):
            return word
        if call.command == "certify" and before == "--purge":
            return self._purge_id()
        if word.startswith("train.data="):
            return "train.data=out/crawl"
        if word.startswith("source.0.inputs="):
            later = re.search(r"/data/(crawl-\d)/", word)
            return f'source.0.inputs=["{later[1] if later else "crawl"}/*.warc.gz"]'
        if word.startswith("train.init_from="):
            return word.replace("step-00000200.", "step-00000012.")  # the last of the training above
        if call.command == "export" and before == "--to":
            return f"exported-{abs(hash(call.words))}"
        if before == "--offset":
            return self.names["offset"] if "--warc" in call.words else "0"
        if call.command == "trace" and before == "--warc":
            return self.names["warc_file"]
        if before == "--set":
            return re.sub(r"/data/[a-z0-9-]+", lambda place: self.names.get(place[0], place[0]), word)
        option = before if before.startswith("--") else ""
        return self.names.get(f"{before} {word}", self.names.get(option, self.names.get(word, word)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A finished run over two sources at the place that the recipes name, a training on it, and files to look
    for."""
    folder = tmp_path_factory.mktemp("world")
    _write_recipes(folder)
    for call in (["run", "recipes/crawl.toml"], ["train", "recipes/train.toml"]):
        _carry_out(folder, call)
    row = query(
        Folder(str(folder / "out" / "crawl")),
        "SELECT doc_id, url, host, clean_hash, warc_file, warc_offset FROM documents"
        " WHERE status = 'kept' AND source = 'web' ORDER BY warc_file, warc_offset LIMIT 1",
    ).rows[0]
    page = dict(
        zip(("doc_id", "url", "host", "clean_hash", "warc_file", "offset"), map(str, row), strict=True)
    )
    _write_texts(folder, page)
    _write_tables(folder)
    _write_model(folder)
    asked = [SiteResponse(url=f"https://{page['host']}/robots.txt", text="User-agent: GPTBot\nDisallow: /\n")]
    write_site_file(folder / "robotstxt" / "CC-0.warc.gz", asked)
    (folder / "plan.json").write_text(json.dumps([{"doc_id": page["doc_id"]}]))
    (folder / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    _carry_out(
        folder, ["scan", "out/crawl", "--against", "benchmark.jsonl", "--to", "scan.json", "--max-share", "1"]
    )
    _carry_out(folder, ["export", "out/crawl", "--format", "jsonl", "--to", "lent"])
    own = ["--tokenizer", "crawl/tiny.tiktoken"]
    _carry_out(folder, ["export", "out/first-run", *own, "--to", "exported"])
    for name in ("A.sqlite", "B.sqlite"):
        recorded = NsightExport(folder / name)
        recorded.kernel("gemm", 0, 300, launched=0)
        recorded.close()
    record = ["record", "out/crawl", "--format", "eu-summary", "--statements", "stated.toml"]
    _carry_out(folder, [*record, "--to", "old.json"])
    return World(folder=folder, names=_names_of(page))


def _write_recipes(folder: Path) -> None:
    """A crawl, the two recipes that the documents name, and two with other thresholds."""
    (folder / "crawl").mkdir()
    sources = make_tiny_crawl(folder / "crawl")
    plain = recipe("out/crawl", {"web": ("crawl/*.warc.gz",), "posts": ("crawl/posts-*.jsonl",)})
    assert set(sources) == {"web", "posts"}
    for name in ("crawl-2", "crawl-3"):
        _write_later_crawl(folder / name)
    plain["tokenize"]["encoding"] = tiny_tokenizer(folder / "crawl")
    plain["quality"] = {"ledger": "all"}
    plain["run"]["keep_text"] = True
    shutil.copytree(ROOT / "recipes" / "sizes", folder / "recipes" / "sizes")
    write_recipe(folder / "recipes" / "crawl.toml", plain)
    for name, least in (("strict", 80), ("loose", 10)):
        write_recipe(folder / f"{name}.toml", {**plain, "quality": {"ledger": "all", "min_words": least}})
    train = {
        "data": "out/crawl",
        "output": "out/first-run",
        "model": "debug",
        "seq_len": 64,
        "global_batch": 2,
        "micro_batch": 1,
        "steps": 12,
        "workers": 1,
        "validation": 0.1,
        "profile": [2, 3],
        "checkpoint": {"every": 4},
        "eval": [{"name": "own", "files": ["own.jsonl"], "every": 6}],
    }
    (folder / "own.jsonl").write_text(json.dumps({"text": "Some words of a text."}) + "\n")
    (folder / "recipes" / "train.toml").write_text(
        tomli_w.dumps({"run": {"name": "first-run"}, "train": train, "mix": {"runs": 4}})
    )


def _write_texts(folder: Path, page: dict[str, str]) -> None:
    """Files that hold the text of a page, or name it."""
    where = ["--warc", f"crawl/{page['warc_file']}", "--offset", page["offset"]]
    text = json.loads(_carry_out(folder, ["explain", "recipes/crawl.toml", *where, "--json"]))["text"]
    for name in ("benchmark.jsonl", "target.jsonl"):
        (folder / name).write_text(json.dumps({"text": text}) + "\n")
    (folder / "takedown.csv").write_text(f"doc_id,why\n{page['doc_id']},asked\n")
    for name, form in (("stated", "eu-summary"), ("california", "ab2013"), ("croissant", "croissant")):
        _write_statements(folder / f"{name}.toml", form)
    for name in ("note.txt", "article.txt"):
        (folder / name).write_text(text)
    (folder / "texts.jsonl").write_text(json.dumps({"text": text}) + "\n")
    science = {"question": "Which?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}
    (folder / "arc.jsonl").write_text(json.dumps(science) + "\n")
    solved = [{"question": "Q", "subject": "s", "choices": ["a", "b", "c", "d"], "answer": 1}] * 6
    for name in ("mmlu.parquet", "mmlu-dev.parquet"):
        pq.write_table(pa.Table.from_pylist(solved), folder / name)
    pq.write_table(pa.table({"text": [text]}), folder / "texts.parquet")
    (folder / "page.html").write_text(f"<html><body><article><p>{text}</p></article></body></html>")


def _write_statements(file: Path, form: str) -> None:
    """Every answer that a record of the world's output asks the provider for."""
    row = tomllib.loads(statements_template([str(file.parent / "out" / "crawl")], form))
    row["answers"] = dict.fromkeys(row["answers"], "2026-11-28")
    for source in row.get("sources", {}).values():
        source.update(kind="crawled", name="x", link="x", description="x")
    if "small_provider" in row:
        row["small_provider"] = "no"
    file.write_text(tomli_w.dumps(row))


def _write_model(folder: Path) -> None:
    """A small classifier, and texts whose labels are known, under the keys that printed calls name."""
    from fasttext import train_supervised

    labels = [("toxic", "idiot moron scum"), ("fine", "river garden bread")] * 20
    (folder / "labels.txt").write_text("".join(f"__label__{label} {text}\n" for label, text in labels))
    train_supervised(str(folder / "labels.txt"), dim=4, thread=1, verbose=0).save_model(
        str(folder / "toxic.bin")
    )
    rows = [{"text": text, "label": label} for label, text in labels]
    (folder / "labelled.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [{"comment": text, "is_toxic": label == "toxic"} for label, text in labels]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))


def _carry_out(folder: Path, words: list[str]) -> str:
    ended = sluice(folder, words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _names_of(page: dict[str, str]) -> dict[str, str]:
    """What the names in printed calls stand for."""
    return {
        "OUT": "out/crawl",
        "OUT…": "out/crawl",
        "OUT2": "out/crawl",
        "/data/out": "out/crawl",
        "/data/kept": "out/crawl",
        "/data/run": "out/first-run",
        "/data/hf": "exported",
        "/data/out80": "out/crawl",
        "/data/out-2": "out/crawl",
        "/data/texts": "out/crawl",
        "RUN_OUTPUT": "out/first-run",
        "RECIPE": "recipes/train.toml",
        "run RECIPE": "recipes/crawl.toml",
        "demo-out/out": "out/crawl",
        "demo-out/training": "out/first-run",
        "demo-out/train.toml": "recipes/train.toml",
        "OTHER_RUN": "out/first-run",
        "--from-step": "8",
        "--doc": page["doc_id"],
        "--url": page["url"],
        "--host": page["host"],
        "--hash": page["clean_hash"],
        "warc_file": page["warc_file"],
        "offset": page["offset"],
        "--warc": f"crawl/{page['warc_file']}",
        "--shard": "web/0",
        "--run": "first-run",
        "--run RUN_OUTPUT": "out/first-run",
        "--row": "0",
        "--forget-export": "lent",
        "--where duplicate_of = 'ID'": f"doc_id = '{page['doc_id']}'",
        "--tokenizer my.tiktoken": "crawl/tiny.tiktoken",
        "SOURCE": "web",
        "NAME": "log_linear",
        "--keep": "3",
        "--vocab": "300",
        "trace --step": "1",
        "--step T": "1",
        "--step 10": "10",
        "sample DIR": "exported",
        "eval DIR": "exported",
        "pages.jsonl": "texts.jsonl",
        "--check DIR": "exported",
        "--check hf": "exported",
        "--step 100": "12",
        "--step 1000": "12",
        "--step 200": "12",
        "--step 2000": "12",
        "--shots 5": "1",
        "--step 5000": "12",
        "--to stated.toml": "template.toml",
        "--step 1200": "10",
        "gsm8k.jsonl": "benchmark.jsonl",
        "mmlu.jsonl": "texts.jsonl",
    }


def _write_later_crawl(folder: Path) -> None:
    """A few pages of which the first crawl has none."""
    folder.mkdir()
    rng = random.Random(folder.name)
    texts = [write_article("en", rng) for _ in range(4)]
    pages = [
        DemoPage(
            url=f"https://{folder.name}.example.com/{number}", html=render_page(text, "example.com", rng)
        )
        for number, text in enumerate(texts)
    ]
    write_source(folder, "later", pages, 1, rng)


def _write_tables(folder: Path) -> None:
    """Published tables of an ablation, as `mix fit` reads them."""
    shares = [(0.1 + 0.8 * n / 15, 0.9 - 0.8 * n / 15) for n in range(16)]
    weights = "index,web,posts\n" + "".join(f"{n},{a},{b}\n" for n, (a, b) in enumerate(shares))
    losses = "index,pile_cc\n" + "".join(f"{n},{3 - a + 0.3 * b * b}\n" for n, (a, b) in enumerate(shares))
    for name in ("W.csv", "train_mixture_1m.csv", "test_mixture_1m.csv"):
        (folder / name).write_text(weights)
    for name in ("L.csv", "train_pile_loss_1m.csv", "test_pile_loss_1m.csv"):
        (folder / name).write_text(losses)


def sluice(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """A call as a user makes it, in `folder`; on a terminal that knows ASCII alone."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def _goes_back(call: Call) -> bool:
    return call.command == "train" and bool({"--from-step", "--forget"} & {*call.words})


def _last_those_that_change(call: Call) -> int:
    if call.command == "certify":  # what was purged has been forgotten by then
        return 4 + ("--check" in call.words)
    if call.command == "train" and "--forget" in call.words:
        return 3
    return 2 * ("--apply" in call.words) + (call.command == "train")


RUNNABLE = sorted(
    (
        call
        for call in CALLS
        if call.command not in CLUSTER
        and call.action not in LATER
        and "--serve" not in call.words
        and call.command != "page"
        and not (call.action == "mix fit" and "--weights" not in call.words)
    ),
    key=_last_those_that_change,
)


@pytest.mark.slow
@pytest.mark.parametrize("call", RUNNABLE, ids=str)
def test_a_printed_call_works_as_printed(world: World, call: Call) -> None:
    ended = sluice(world.folder, world.words(call))
    assert ended.returncode == 0, f"{ended.args[2:]}: {ended.stdout[-1000:]}{ended.stderr[-3000:]}"
