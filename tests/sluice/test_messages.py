"""Errors name options to the user of a command, and arguments to the caller of the library."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluice
from pipeline.cli.commands import COMMANDS
from pipeline.cli.main import main
from sluice.messages import names_of, python_message
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import recipe, write_recipe

FUNCTIONS: dict[str, tuple[str, set[str]]] = {
    "run": ("run", {"--json", "--try"}),
    "train": ("train", {"--json", "--prepare"}),
    "verify": ("verify", {"--json"}),
    "scan": ("scan", {"--json"}),
    "export": ("export", {"--json", "--step", "--tokenizer", "--average", "--ema", "--check"}),
    "export_checkpoint": (
        "export",
        {"--json", "--check", "--format", "--name", "--source", "--split", "--dtype", "--tokens"}
        | {"--file-documents", "--copy", "--address", "--num-cpus"},
    ),
    "tune": ("tune", {"--json", "--gained"}),
    "explain": ("explain", {"--json", "--file", "--text", "--offset", "--row", "--element"}),
    "explain_file": ("explain", {"--json"}),
    "certify": ("certify", {"--json", "--check", "--against"}),
    "check_certificate": ("certify", {"--json", "--purge", "--to", "--against"}),
    "sample": ("sample", {"--json", "--every"}),
    "compare_runs": ("certify", {"--json", "--purge", "--to", "--check"}),
    "commit": ("commit", {"--json"}),
    "rights": ("rights", {"--json", "--forget"}),
    "record": ("record", {"--json", "--sql", "--statements-template"}),
    "prove": ("prove", {"--json"}),
    "evaluate": ("eval", {"--json", "--no-scan", "--to"}),
    "purge": ("purge", {"--json", "--apply", "--reason", "--by", "--forget-export", "--csv", "--csv-safe"}),
}
"""The command that each function is, and the options of it that the function has not."""


def options_of(command: str) -> set[str]:
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[command][0]).configure(parser)
    return {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_option_of_a_command_is_an_argument_of_its_function_or_listed_as_missing(name: str) -> None:
    command, missing = FUNCTIONS[name]
    function = getattr(sluice, name)
    assert options_of(command) - missing <= set(names_of(function))
    arguments = function.__wrapped__.__annotations__
    assert {names_of(function)[option] for option in options_of(command) - missing} <= set(arguments) | {
        "doc_id"
    }


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--from /a/x.txt: it lists nothing", "`listed` /a/x.txt: it lists nothing"),
        ("expected --doc, --parsed-texts", "expected `docs`, `parsed_texts`"),
        (
            "; sluice train RECIPE --forget 67c7 does it",
            "; sluice.train(RECIPE, forget='67c7') does it",
        ),
        (
            "`sluice purge '/a b' --doc ab1 c2 --reason … --by … --apply` again",
            "sluice.purge('/a b', docs=['ab1', 'c2']).apply(reason=…, by=…) again",
        ),
        (
            "with sluice run RECIPE --from /a, and train",
            "with sluice.run(RECIPE, from_output='/a'), and train",
        ),
        ("sluice train RECIPE --from-step 0", "sluice.train(RECIPE, from_step=0)"),
        ("the same `sluice purge` again", "the same `sluice purge` again"),
        ("`sluice purge --from` takes more", "`sluice purge --from` takes more"),
        ("sluice lineage /a --csv", "sluice lineage /a --csv"),
        ("zstd --long=27; '--from' and /a/--from stay", "zstd --long=27; '--from' and /a/--from stay"),
    ],
)
def test_a_message_is_said_in_python(message: str, expected: str) -> None:
    assert python_message(message, names_of(sluice.purge)) == expected


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output, and beside it a recipe and files that are wrong in some way."""
    folder = tmp_path_factory.mktemp("messages")
    sources = make_tiny_crawl(folder)
    tokenize = {"encoding": tiny_tokenizer(folder)}
    sluice.run(write_recipe(folder / "a.toml", recipe(str(folder / "out"), sources, tokenize=tokenize)))
    write_recipe(folder / "recipe.toml", recipe(str(folder / "new"), {"web": (str(folder / "*.jsonl"),)}))
    (folder / "empty.txt").write_text("")
    (folder / "scan.json").write_text('{"documents": 1}')
    (folder / "two.jsonl").write_text(json.dumps({"text": "a b"}) + "\n")
    return str(folder / "out")


WRONG: dict[str, Callable[[str], Any]] = {
    "`listed` ": lambda out: sluice.purge(out, listed=f"{out}/../empty.txt"),
    "expected one of `docs`, `urls`, `hosts`, `domains`, `listed`": sluice.purge,
    "`where` ": lambda out: sluice.purge(out, where="source = 'nowhere'"),
    "`source` 'nowhere'": lambda out: sluice.purge(out, source="nowhere"),
    "`warc` 'nowhere'": lambda out: sluice.purge(out, warc="nowhere"),
    "`promote_duplicates`: `parsed_texts`": lambda out: sluice.purge(
        out, parsed_texts=True, promote_duplicates=True
    ),
    "`hosts` takes addresses": lambda out: sluice.purge(out, domains=["localhost"]),
    "`forget_exports` gone": lambda out: sluice.purge(out, source="web").apply(
        reason="a", by="b", forget_exports=["gone"]
    ),
    "`from_output` ": lambda out: sluice.run(f"{out}/../recipe.toml", from_output=out),
    "`overrides` 'seed'": lambda out: sluice.load_recipe(f"{out}/../recipe.toml", ["seed"]),
    "`tokenizer` is for `retokenize`": lambda out: sluice.verify(out, tokenizer="x"),
    "`retokenize` 2": lambda out: sluice.verify(out, retokenize=2),
    "`against` ": lambda out: sluice.scan(out, f"{out}/../two.jsonl"),
    "`to` ": lambda out: sluice.scan(out, f"{out}/../two.jsonl", to=f"{out}/scan.json"),
    "`format` docx": lambda out: sluice.export(out, f"{out}-copy", format="docx"),
    "`split` ": lambda out: sluice.export(out, f"{out}-copy", format="jsonl", split={"a": 2.0}),
    "`sources` nowhere": lambda out: sluice.export(out, f"{out}-copy", format="jsonl", sources=["nowhere"]),
    "`file_documents` 0": lambda out: sluice.export(out, f"{out}-copy", format="jsonl", file_documents=0),
    "`doc_id` ID or `url` URL": sluice.explain,
    "expected `file` HTML, `text` FILE": lambda out: sluice.explain_file(f"{out}/../recipe.toml"),
    "`offset` names a byte": lambda out: sluice.explain_file(
        f"{out}/../recipe.toml", file=f"{out}/../two.jsonl", offset=1, row=1
    ),
    "`from_step` does not go with `forget`": lambda out: sluice.train(
        sluice.load_train_recipe(train_recipe(out)), from_step=1, forget="all"
    ),
    "`restart` goes with `forget`": lambda out: sluice.train(train_recipe(out), restart=True),
    "recipe: a dict; expected": lambda out: sluice.run({"run": {"output": out}}),  # type: ignore[arg-type]
    "`to` 'cert.txt'": lambda out: sluice.certify(out, to="cert.txt"),
}


def train_recipe(out: str) -> Path:
    table = {
        "data": out,
        "output": f"{out}-run",
        "model": "debug",
        "seq_len": 8,
        "global_batch": 1,
        "steps": 1,
    }
    return write_recipe(Path(out).parent / "train.toml", {"run": {"name": "a"}, "train": table})


@pytest.mark.parametrize("says", sorted(WRONG))
def test_a_wrong_call_from_python_names_its_arguments(says: str, out: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, OSError, RuntimeError)) as raised:
        WRONG[says](out)
    assert says in str(raised.value)
    assert not re.search(r"--[a-z]", str(raised.value))


def test_the_command_names_its_options(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", out, "--source", "nowhere", "--reason", "a", "--by", "b"]) == 2
    assert "--source 'nowhere'" in capsys.readouterr().err
