"""Commands that change a disk or a bucket in S3, each with what that holds before it and what must come of it
whatever happens."""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

import boto3
import tomli_w

from lineage.ids import content_hash
from lineage.storage.folder import Folder
from pipeline.demo.pages import render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from tests.support.inputs.tiny_crawl import inputs_of, tiny_tokenizer
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, write_recipe
from tests.support.stores.faulty_disk import Commands, Ended

SLUICE: Final = "pipeline.cli.main"
TRAINER: Final = "trainer.command"
OWN_CLASS: Final = "tests.support.steps.model_steps:Shout"
_TIMED: Final = re.compile(
    "/lineage/(exports|purges|training_runs|training_segments|cache_sweeps)/(fact-|_delta_log/0)|/tensorboard/|/attempts/0|/recorder(/|$)"
)
"""Files whose name is a hash of rows with a time of day in them or of the attempts that there were, or has a
time; and what an attempt that failed leaves to be diagnosed."""
_OF_ATTEMPT: Final = re.compile(r"attempt-\d+|batches-\d+-\d+-\d+-\d+")
"""What an attempt writes down is its own."""


_KEPT: Final = "SELECT doc_id FROM documents WHERE status = 'kept' ORDER BY doc_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command on a disk or bucket: `begin` is what that holds before it, and `result` what must be the same
    whatever happened on the way. `outs`: what `sluice verify` looks at."""

    arguments: tuple[str, ...]
    begin: Path
    result: Callable[[str], object]
    outs: tuple[str, ...]
    module: str = SLUICE


class Disk:
    """The disk at one path, on which a case is carried out again and again."""

    def __init__(self, top: Path, commands: Commands) -> None:
        self.top, self._commands = top, commands

    def renew(self, case: Case) -> None:
        """What the case begins with, on a disk that is mounted or a folder."""
        self.top.mkdir(exist_ok=True)
        for entry in self.top.iterdir():
            if entry.name != "lost+found":
                shutil.rmtree(entry)
        shutil.copytree(case.begin, self.top, dirs_exist_ok=True)

    def call(self, case: Case, by: Commands | None = None, **env: str) -> Ended:
        """Carry it out, by another server of commands if one is given."""
        return (by or self._commands).call(*case.arguments, module=case.module, env=env)

    def state(self, case: Case) -> tuple[list[str], object]:
        """The names of all that is there, and the result; every output is whole."""
        _assert_whole(self, case)
        found = {str(path.relative_to(self.top)) for path in self.top.rglob("*")}
        return _lasting(found - {"lost+found"}), case.result(str(self.top))

    def save(self, folder: Path) -> Path:
        """Copy what is there to a new folder."""
        return Path(shutil.copytree(self.top, folder))


class Bucket:
    """A bucket of the S3 server that AWS_* name, on which a case is carried out again and again."""

    def __init__(self, name: str, commands: Commands, settings: Mapping[str, str]) -> None:
        """`settings`: the variables that lead to its server, for commands."""
        self.top, self._name, self._commands = f"s3://{name}", name, commands
        self._settings, self._client = dict(settings), boto3.client("s3")

    def renew(self, case: Case) -> None:
        """What the case begins with."""
        for name in self._names():
            self._client.delete_object(Bucket=self._name, Key=name)
        for path in sorted(case.begin.rglob("*")):
            if path.is_file():
                key = str(path.relative_to(case.begin))
                self._client.put_object(Bucket=self._name, Key=key, Body=path.read_bytes())

    def call(self, case: Case, by: Commands | None = None, **env: str) -> Ended:
        return (by or self._commands).call(*case.arguments, module=case.module, env=self._settings | env)

    def state(self, case: Case) -> tuple[list[str], object]:
        """The names of all that is there, and the result; every output is whole."""
        _assert_whole(self, case)
        return _lasting(set(self._names())), case.result(self.top)

    def save(self, folder: Path) -> Path:
        """Copy what is there to a new folder."""
        for name in self._names():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._client.download_file(self._name, name, str(folder / name))
        return folder

    def _names(self) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def _assert_whole(place: Disk | Bucket, case: Case) -> None:
    for out in case.outs:
        ended = place.call(replace(case, arguments=("verify", f"{place.top}/{out}"), module=SLUICE))
        assert ended.code == 0, ended.said


def _lasting(names: set[str]) -> list[str]:
    """Of files those names that are the same whenever and however often something was tried."""
    return sorted({_OF_ATTEMPT.sub("attempt", name) for name in names if not _TIMED.search(f"/{name}")})


Place = TypeVar("Place", Disk, Bucket)


class Cases(Generic[Place]):
    """Each command by name; what one writes is where another begins."""

    def __init__(self, folder: Path, disk: Place) -> None:
        self._folder, self.disk = folder, disk
        sources, tokenizer = few_documents(folder), tiny_tokenizer(folder)
        tables = {"ray": {"address": "none"}, "run": {"keep_text": True}, "tokenize": {"encoding": tokenizer}}
        for name in ("out", "other"):
            write_recipe(folder / f"{name}.toml", recipe(f"{disk.top}/{name}", sources, **tables))
        self._tables, self._sources = tables, sources
        (folder / "empty").mkdir()
        self._training = _training(str(disk.top), folder)

    def named(self, name: str) -> Case:
        top = str(self.disk.top)
        match name.split():
            case ["run"]:
                return self._run
            case ["run", "models"]:
                return self._run_models
            case ["run", "--from"]:
                other = ("run", str(self._folder / "other.toml"), "--from", f"{top}/out")
                return Case(
                    arguments=other, begin=self._finished, result=_corpus("other"), outs=("out", "other")
                )
            case ["purge"]:
                return self.purge(0)
            case ["train"]:
                return self._train
            case ["mix", "run"]:
                mix = ("mix", "run", str(self._training), "--parallel", "1")
                return Case(arguments=mix, begin=self._finished, result=_mixed, outs=("out",))
            case ["export", "checkpoint"]:
                model = ("export", f"{top}/training", "--to", f"{top}/model")
                return Case(arguments=model, begin=self._trained, result=_bytes("model"), outs=("out",))
            case ["export", form]:
                copy = ("export", f"{top}/out", "--format", form, "--address", "none", "--to", f"{top}/copy")
                return Case(arguments=copy, begin=self._finished, result=_bytes("copy"), outs=("out",))
        raise KeyError(name)

    def purge(self, number: int) -> Case:
        """The purge of the kept document of that number, by their ids."""
        doc_id = query(Folder(str(self._finished / "out")), _KEPT).rows[number][0]
        call = ("purge", f"{self.disk.top}/out", "--doc", str(doc_id), "--reason", "a test", "--by", "a test")
        return Case(arguments=(*call, "--apply"), begin=self._finished, result=_purged, outs=("out",))

    @functools.cached_property
    def _run(self) -> Case:
        call = ("run", str(self._folder / "out.toml"))
        return Case(arguments=call, begin=self._folder / "empty", result=_corpus("out"), outs=("out",))

    @functools.cached_property
    def _run_models(self) -> Case:
        """A run with an encoder and a class of a user's own, and a step between them, for a server of commands
        with `models_work_in_process`."""
        from tests.support.steps.tiny_encoder import make_encoder  # with torch and transformers: seconds

        encoder = make_encoder(self._folder / "encoder")
        judge = {"name": "edu", "model": encoder, "label": "high", "threshold": 0.01, "reject": "below"}
        plain = recipe(f"{self.disk.top}/out", self._sources, **self._tables)
        plain |= {"classifier": [judge | {"batch_size": 2}]}
        for source in plain["source"]:
            source["steps"] = ["url", "parse", "language", "classifier", "pii", OWN_CLASS, "identity"]
            source["steps"] += ["dedup.url", "dedup.exact", "dedup.near"]
        call = ("run", str(write_recipe(self._folder / "models.toml", plain)))
        return Case(arguments=call, begin=self._folder / "empty", result=_corpus("out"), outs=("out",))

    @functools.cached_property
    def _finished(self) -> Path:
        return self._then(self._run, "finished")

    @functools.cached_property
    def _train(self) -> Case:
        call = (str(self._training),)
        return Case(arguments=call, begin=self._finished, result=_losses, outs=("out",), module=TRAINER)

    @functools.cached_property
    def _trained(self) -> Path:
        return self._then(self._train, "trained")

    def _then(self, case: Case, name: str) -> Path:
        """What the disk holds when the case ended well."""
        self.disk.renew(case)
        ended = self.disk.call(case)
        assert ended.code == 0, ended.said
        return self.disk.save(self._folder / name)


def few_documents(folder: Path) -> dict[str, tuple[str, ...]]:
    """Ten of them and a duplicate, in three files: what a run does to the disk hangs on its phases, not on
    these."""
    rng = random.Random(0)
    told = [write_article("en", rng) for _ in range(6)]
    pages = [
        DemoPage(url=f"https://web.example.com/{number}", html=render_page(article, "web.example.com", rng))
        for number, article in enumerate([*told, told[1]])
    ]
    write_source(folder, "web", pages, 2, rng)
    rows = [{"id": str(number), "text": write_article("en", rng, 10).text} for number in range(4)]
    (folder / "posts-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return inputs_of(folder)


def _corpus(out: str) -> Callable[[str], object]:
    return lambda top: fingerprint(f"{top}/{out}")


def _bytes(name: str) -> Callable[[str], object]:
    return lambda top: _hashes(Folder(f"{top}/{name}"))


def _hashes(folder: Folder, under: str = "") -> dict[str, bytes]:
    return {name: content_hash(folder.read(name)) for name in folder.names(under)}


def _training(top: str, folder: Path) -> Path:
    plain = {
        "run": {"name": "a training"},
        "train": {
            "data": f"{top}/out",
            "output": f"{top}/training",
            "model": "debug",
            "seq_len": 64,
            "global_batch": 2,
            "micro_batch": 1,
            "steps": 8,
            "workers": 1,
            "dtype": "float64",
            "validation": 0.1,
            "checkpoint": {"every": 3},
            "record_batches": True,
        },
        "mix": {
            "runs": 4,
            "replicates": 1,
            "held_out": 0,
            "targets": {"web": 1.0},
            "proxy": {"tokens": 4 * 2 * 64},
        },
    }
    (folder / "training.toml").write_text(tomli_w.dumps(plain))
    return folder / "training.toml"


def _purged(top: str) -> object:
    """The rows of `purges` less their time, and what is made from bytes."""
    out = Folder(f"{top}/out")
    rows = query(out, "SELECT purge_id, num_documents, num_tokens FROM purges").rows
    return rows, {name: _hashes(out, name) for name in ("shards", "documents", "dedup")}


def _losses(top: str) -> object:
    """The newest attempt's loss of each step."""
    rows = [json.loads(line) for line in Folder(f"{top}/training").read("metrics.jsonl").splitlines()]
    return {row["step"]: row["loss"] for row in sorted(rows, key=lambda row: row["attempt"])}


def _mixed(top: str) -> object:
    mix = Folder(f"{top}/training/mix")
    return {name: mix.read(name).decode() for name in ("design.json", "weights.csv", "losses.csv")}
