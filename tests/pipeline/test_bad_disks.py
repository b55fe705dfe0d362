"""Commands on a disk that fails at one call: each says where and what to do, and the same call ends it."""

from __future__ import annotations

import errno
import functools
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import tomli_w

from lineage.ids import content_hash
from pipeline.demo.pages import render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from tests.support.inputs.tiny_crawl import inputs_of, tiny_tokenizer
from tests.support.outputs.runs import fingerprint, recipe, write_recipe
from tests.support.stores.faulty_disk import Commands, Ended, commands_on, compile_faulty_disk, read_record

ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EROFS)
POINTS: Final = 25
TRAINER: Final = "trainer.__main__"
_TIMED: Final = re.compile(
    "/lineage/(exports|training_runs|training_segments|cache_sweeps)/(fact-|_delta_log/0)|/tensorboard/|/attempts/0"
)
"""Files whose name is a hash of rows with a time of day in them or of the attempts that there were, or has a time."""
_OF_ATTEMPT: Final = re.compile(r"attempt-\d+|batches-\d+-\d+-\d+-\d+")
"""What an attempt writes down is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command on a disk: `begin` is what the disk holds before it, and `result` what must be the same whatever
    happened on the way. `outs`: what `sluice verify` looks at."""

    arguments: tuple[str, ...]
    begin: Path
    result: Callable[[Path], object]
    outs: tuple[str, ...]
    module: str = "pipeline.cli.main"


class Disk:
    """The disk at one path, on which a case is carried out again and again."""

    def __init__(self, top: Path, commands: Commands) -> None:
        self.top, self._commands = top, commands

    def renew(self, case: Case) -> None:
        shutil.rmtree(self.top, ignore_errors=True)
        shutil.copytree(case.begin, self.top)

    def call(self, case: Case, **env: str) -> Ended:
        return self._commands.call(*case.arguments, module=case.module, env=env)

    def state(self, case: Case) -> tuple[list[str], object]:
        """The names of all that is there, and the result; every output is whole."""
        for out in case.outs:
            ended = self._commands.call("verify", str(self.top / out))
            assert ended.code == 0, ended.said
        found = {str(path.relative_to(self.top)) for path in self.top.rglob("*")}
        names = {_OF_ATTEMPT.sub("attempt", name) for name in found if not _TIMED.search(name)}
        return sorted(names), case.result(self.top)


def tried(disk: Disk, case: Case, points: int, seed: int) -> list[str]:
    """Let the case fail at so many of its calls, drawn by the seed: what happened at each, a line."""
    notes = disk.top.parent / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    disk.renew(case)
    under = {"DISK_UNDER": f"{disk.top}/"}
    ended = disk.call(case, **under, DISK_RECORD=str(notes / "acts"))
    assert ended.code == 0, ended.said
    num, expected, rng = len(read_record(notes / "acts")), disk.state(case), random.Random(seed)
    lines, problems, at = [], [], os.environ.get("AT")
    for number in [int(x) for x in at.split(",")] if at else sorted(rng.sample(range(num), points)):
        error = rng.choice(ERRORS)
        counter, failed = notes / f"counter-{number}", notes / f"failed-{number}"
        env = {**under, "DISK_FAIL_AT": str(number), "DISK_ERRNO": str(error), "DISK_COUNTER": str(counter)}
        if error != errno.EIO:  # a full disk stays full, and one that went read-only stays so
            env["DISK_LASTING"] = "1"
        disk.renew(case)
        first = disk.call(case, **env, DISK_FAILED=str(failed))
        assert failed.exists(), f"no call {number} of {num}"
        act = read_record(failed)[0]
        line = f"{number} of {num}, {act.kind} {act.path.removeprefix(str(disk.top))}: {errno.errorcode[error]}"
        lines.append(f"{line}: {first.code}, {_error(first)}")
        try:
            assert_is_told(first, disk.top, error, lines[-1])
            again = disk.call(case)
            assert again.code == 0, f"{lines[-1]}\n{again.said}"
            state = disk.state(case)
            assert state[0] == expected[0], f"{lines[-1]}: {set(state[0]) ^ set(expected[0])}"
            assert state[1] == expected[1], lines[-1]
        except AssertionError as problem:
            problems.append(str(problem))
            print("PROBLEM", problem, flush=True)
        else:
            print(lines[-1], flush=True)
    assert not problems, "\n\n".join(problems)
    return lines


def _error(ended: Ended) -> str:
    """What was said behind the lines of progress."""
    lines = ended.said.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("sluice")]
    return "\n".join(lines[begins[-1] :]) if begins else ""


def assert_is_told(first: Ended, top: Path, error: int, line: str) -> None:
    """A call that could not do its work says where, why and what to do."""
    assert "Traceback" not in first.said, f"{line}\n{first.said}"
    if first.code == 0:
        return
    assert first.code == 1, f"{line}\n{first.said}"
    said = _error(first)
    assert str(top) in said and os.strerror(error) in said, f"{line}\n{first.said}"
    assert "same call again" in said and len(said.splitlines()) <= 3, f"{line}\n{first.said}"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands_on(compile_faulty_disk(tmp_path_factory.mktemp("library"))) as server:
        yield server


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk") / "disk", commands)


class Cases:
    """Each command by name; what one writes is where another begins."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk
        sources, tokenizer = _few_documents(folder), tiny_tokenizer(folder)
        tables = {"ray": {"address": "none"}, "run": {"keep_text": True}, "tokenize": {"encoding": tokenizer}}
        for name in ("out", "other"):
            write_recipe(folder / f"{name}.toml", recipe(str(disk.top / name), sources, **tables))
        (folder / "empty").mkdir()
        self._training = _training(disk.top, folder)

    def named(self, name: str) -> Case:
        top = str(self._disk.top)
        match name.split():
            case ["run"]:
                return self._run
            case ["run", "--from"]:
                other = ("run", str(self._folder / "other.toml"), "--from", f"{top}/out")
                return Case(arguments=other, begin=self._finished, result=_corpus("other"), outs=("out", "other"))
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

    @functools.cached_property
    def _run(self) -> Case:
        call = ("run", str(self._folder / "out.toml"))
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
        self._disk.renew(case)
        ended = self._disk.call(case)
        assert ended.code == 0, ended.said
        return Path(shutil.copytree(self._disk.top, self._folder / name))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, disk: Disk) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"), disk)


def _few_documents(folder: Path) -> dict[str, tuple[str, ...]]:
    """Ten of them and a duplicate in three files: what a run does to the disk is in its phases, not its documents."""
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


def _corpus(out: str) -> Callable[[Path], object]:
    return lambda top: fingerprint(str(top / out))


def _bytes(folder: str) -> Callable[[Path], object]:
    return lambda top: {
        str(path): content_hash(path.read_bytes()) for path in (top / folder).rglob("*") if path.is_file()
    }


def _training(top: Path, folder: Path) -> Path:
    plain = {
        "run": {"name": "a training"},
        "train": {
            "data": str(top / "out"),
            "output": str(top / "training"),
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
        "mix": {"runs": 3, "replicates": 1, "held_out": 0, "targets": {"web": 1.0}, "proxy": {"tokens": 4 * 2 * 64}},
    }
    (folder / "training.toml").write_text(tomli_w.dumps(plain))
    return folder / "training.toml"


def _losses(top: Path) -> object:
    """The newest attempt's loss of each step."""
    rows = [json.loads(line) for line in (top / "training" / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in sorted(rows, key=lambda row: row["attempt"])}


def _mixed(top: Path) -> object:
    mix = top / "training" / "mix"
    return {name: (mix / name).read_text() for name in ("design.json", "weights.csv", "losses.csv")}


NAMES: Final = ("run", "run --from", "export hf", "export checkpoint", "train", "mix run")


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
def test_a_command_on_a_disk_that_fails_says_where_and_is_ended_by_the_same_call(
    name: str, disk: Disk, cases: Cases
) -> None:
    for line in tried(disk, cases.named(name), POINTS, 1):
        print(line)
