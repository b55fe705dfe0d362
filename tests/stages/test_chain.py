"""The chain: its order, what it leaves out, a user's own step, time, purged documents, and that it may
travel."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lineage.ids import content_hash, text_hash
from lineage.pages import normalise_url
from lineage.purge.purged_sets import PurgedSets
from lineage.recipe import RecipeError
from pipeline.demo.pages import write_article
from stages.chain import DEFAULT_STEPS, Chain, build_chain
from stages.document import Document, Edit, Finding, Rejection, reject
from stages.pii.options import PiiTable
from stages.quality.options import QualityTable
from stages.steps.catalogue import CORPUS_STAGES, STAGES, StepTables, files_of
from stages.steps.classifier import ClassifierTable
from stages.steps.decontaminate import DecontaminateTable
from stages.steps.language import LanguageTable
from stages.steps.url import UrlTable
from stages.steps.user import user_code
from stages.steps.user.user_code import function_files, function_libraries

SENTENCES = (
    "The committee met again in the spring to discuss the results of the survey that it had sent out to the"
    " town. ",
    "Most of the people who answered said that they would like to have a new library with more rooms for"
    " children. ",
    "Others have asked for a better bus to the station, and for the old bridge to be opened again before"
    " winter. ",
    "The mayor promised that he would read every letter with care and that nobody would be left without an"
    " answer. ",
    "It will take some time until the money is there, but the plans are ready and the work could begin at"
    " once. ",
)
GERMAN = "Das ist ein deutscher Satz über das Wetter im Herbst. "
PAGE = "<html><body><article>" + "".join(f"<p>{s}</p>" for s in SENTENCES) + "</article></body></html>"
SHORT = ("url", "parse", "language")


def shout(document: Document) -> Document:
    return document.with_text(document.text.upper())


def refuse(document: Document) -> Rejection:
    return reject(document, "whatever", "mine.too_quiet", value=1.0, threshold=2.0)


def fail(document: Document) -> Document:
    raise KeyError(document.url)


def quote(document: Document) -> Document:
    try:
        number = int(document.text)
    except ValueError as error:
        raise LookupError(f"no number in {document.text}") from error
    return document.with_text(str(number))


def call_a_library(document: Document) -> Document:
    return document.with_text(json.loads(document.text))


def use_memory_up(document: Document) -> Document:
    raise MemoryError


def interrupt(document: Document) -> Document:
    raise KeyboardInterrupt


def forget(document: Document) -> None:
    return None


def swap(document: Document) -> Document:
    return replace(document, doc_id=bytes(16))


def garble(document: Document) -> Document:
    return document.with_text("\ud800")


def look(document: Document) -> Document:
    return document.with_text(f"{len(document.payload)} {document.text}")


def own(function: str) -> str:
    return f"{__name__}:{function}"


def tables(**keys) -> StepTables:
    return StepTables(max_document_bytes=10**7, **keys)


def rule(outcome: Document | Rejection) -> str:
    return outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


def test_the_default_steps_are_every_stage_and_idle_ones_are_left_out():
    assert DEFAULT_STEPS == STAGES
    assert build_chain(DEFAULT_STEPS, tables()).stages == ("url", "parse", "language", "quality", "pii")


def test_where_all_languages_are_kept_each_text_is_judged_by_its_own_rules(make_document):
    quality = QualityTable(no_table="reject")
    chain = build_chain(
        ("parse", "language", "quality"), tables(language=LanguageTable(keep=()), quality=quality)
    )
    for language in ("de", "en", "es", "fr", "it", "nl"):
        kept = chain(make_document(text=write_article(language, random.Random(1)).text))
        assert isinstance(kept, Document) and kept.language == language
    japanese = "委員会は春に再び集まり、町の人々と調査の結果について話し合う予定である。" * 9
    assert rule(chain(make_document(text=japanese))) == "quality.no_table"


def test_steps_whose_tables_ask_for_them_run_in_the_order_of_the_stages():
    chain = build_chain(
        DEFAULT_STEPS,
        tables(
            language=LanguageTable(prefilter=True),
            classifier=(ClassifierTable(name="x", model="m.bin", label="l", threshold=0.5),),
            decontaminate=DecontaminateTable(against=("b.jsonl",)),
        ),
    )
    needed = STAGES[: STAGES.index("identity")]
    assert chain.stages == needed, (
        f"off with these tables: {set(needed) - set(chain.stages)}; add theirs above"
    )
    assert tuple(step.stage for step in chain.steps) == chain.stages
    idle = tables(pii=PiiTable(kinds=()), quality=QualityTable(rules=()))
    assert build_chain(DEFAULT_STEPS, idle).stages == SHORT


def test_a_good_page_goes_through_every_default_step(make_document):
    kept = build_chain(DEFAULT_STEPS, tables())(make_document(html=PAGE))
    assert isinstance(kept, Document), kept
    assert kept.language == "en"
    assert kept.text.startswith("The committee")
    assert kept.text_hash == text_hash(kept.text)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("", "parse.empty"),
        ("<p>" + GERMAN * 5, "language.not_kept"),
        ("<p>" + SENTENCES[0], "gopher_quality.too_few_words"),
    ],
)
def test_the_first_step_that_says_no_decides(make_document, html, expected):
    outcome = build_chain(DEFAULT_STEPS, tables())(make_document(html=f"<html><body>{html}</body></html>"))
    assert rule(outcome) == expected


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("url", "parse", "langauge"), "unknown step 'langauge'"),
        (("url", "language", "parse"), "out of order"),
        (("url", "parse", "parse"), "twice"),
        (("url", "language"), "no 'parse'"),
        ((), "no 'parse'"),
        (("parse", "identity", "a.b:c"), "stands after 'identity'"),
    ],
)
def test_a_list_of_steps_that_cannot_be_is_a_wrong_recipe(steps, message):
    with pytest.raises(RecipeError, match=message):
        build_chain(steps, tables())


def test_stages_that_compare_documents_may_stand_in_the_list_and_are_no_steps():
    assert build_chain((*SHORT, *CORPUS_STAGES), tables()).stages == SHORT


@pytest.mark.parametrize(
    "name", ["nowhere:f", "stages.chain:nothing", "stages.chain:DEFAULT_STEPS", ":f", "stages:"]
)
def test_a_function_that_cannot_be_found_is_a_wrong_recipe(name):
    with pytest.raises(RecipeError, match=r"source\.steps"):
        build_chain(("parse", name), tables()).prepare()


def test_a_function_in_the_working_folder_is_found_and_its_file_is_named(
    make_document, tmp_path, monkeypatch
):
    (tmp_path / "my_filters.py").write_text("def keep(document):\n    return document\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    document = make_document(text="x")
    assert isinstance(build_chain(("parse", "my_filters:keep"), tables())(document), Document)
    [file] = function_files(("parse", "my_filters:keep"))
    assert (file.name, file.path, file.is_library) == (
        "my_filters.py",
        str(tmp_path / "my_filters.py"),
        False,
    )
    with pytest.raises(RecipeError, match="nowhere"):
        function_files(("nowhere.at_all:f",))


def test_the_files_that_a_function_s_file_imports_are_named_too(tmp_path, monkeypatch):
    """A helper shapes the result as well as what calls it, and a job on a cluster needs it."""
    files = {
        "our_filters.py": "import json, numpy.linalg\nimport my_words\nfrom rules.short import LEAST\nimport nowhere",
        "my_words.py": "from my_package import lists\nimport our_filters\n",
        "my_package/__init__.py": "",
        "my_package/lists.py": "",
        "my_package/words.txt": "",
        "rules/short.py": "def broken(:\n",
        "rules/long.py": "",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = function_files(("parse", "our_filters:keep"))
    assert [file.name for file in found] == sorted(files.keys() - {"rules/long.py", "unused.py"})
    assert not [file for file in found if file.is_library]


def test_a_package_is_listed_and_parsed_once_however_often_it_names_itself(tmp_path, monkeypatch):
    """A step in a package of 135 files made a run begin 2.4 s later."""
    names = [f"part_{number}" for number in range(30)]
    (tmp_path / "mine").mkdir()
    for name in ("__init__", *names):
        imports = "".join(f"import mine.{other}\nfrom mine import {other}\n" for other in names)
        (tmp_path / "mine" / f"{name}.py").write_text(f"import numpy\n{imports}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    listings, parsed = [], []
    list_folder, parse = Path.rglob, user_code.imported_names
    monkeypatch.setattr(Path, "rglob", lambda *given: listings.append(given) or list_folder(*given))
    monkeypatch.setattr(user_code, "imported_names", lambda source: parsed.append(source) or parse(source))
    assert len(function_files(("mine.part_3:keep", "mine.part_4:keep"))) == 31
    assert len(listings) == 1
    assert function_libraries(("mine.part_3:keep",)) == ("numpy",)
    assert len(parsed) == 1, "all files hold the same"
    (tmp_path / "mine" / "part_7.py").write_text("import pandas\n")
    assert function_libraries(("mine.part_3:keep",)) == ("numpy", "pandas")
    assert len(parsed) == 2


def test_a_user_s_step_changes_a_text_under_its_own_name(make_document):
    chain = build_chain(("parse", own("shout"), "pii"), tables())
    assert chain.stages == ("parse", own("shout"), "pii")
    kept = chain(make_document(text="quiet, a@b.co"))
    assert isinstance(kept, Document)
    assert kept.text == "QUIET, <EMAIL>"


def test_a_user_s_step_after_parse_finds_the_payload(make_document):
    document = make_document(html=PAGE)
    assert document.payload
    outcome = build_chain(("parse", own("look"), "language"), tables())(document)
    assert outcome.text.startswith(f"{len(document.payload)} The committee")


def test_what_no_step_needs_any_more_is_let_go(make_document):
    kept, turned_down = build_chain(SHORT, tables()).run(
        [[make_document(html=PAGE), make_document(html=GERMAN)]], {}
    )
    assert isinstance(kept, Document)
    assert isinstance(turned_down, Rejection)
    assert kept.payload == turned_down.document.payload == b""


def test_a_user_s_rejection_is_counted_at_its_own_stage(make_document):
    outcome = build_chain(("parse", own("refuse")), tables())(make_document(text="x"))
    assert isinstance(outcome, Rejection)
    assert (outcome.finding.stage, outcome.finding.rule, outcome.finding.value) == (
        own("refuse"),
        "mine.too_quiet",
        1,
    )


@pytest.mark.parametrize("function", ["fail", "forget", "swap", "garble"])
def test_a_user_s_step_that_fails_on_a_document_rejects_it_and_the_run_goes_on(make_document, function):
    chain = build_chain(("parse", own(function)), tables())
    document = make_document(text="x")
    outcome = chain(document)
    assert isinstance(outcome, Rejection)
    assert (outcome.finding.stage, outcome.finding.rule) == (own(function), f"{own(function)}.error")
    assert outcome.document.doc_id == document.doc_id


def test_what_a_step_raised_is_kept_with_its_line_and_without_a_word_of_the_page(make_document):
    outcome = build_chain(("parse", own("quote")), tables())(make_document(text="a secret of the page"))
    fault = outcome.fault
    assert fault.error == "LookupError"
    line = quote.__code__.co_firstlineno + 4
    assert fault.where == f"{__name__}, line {line}, in quote"
    _, code, led, *_ = fault.traceback.splitlines()
    assert (code.strip(), led) == ("number = int(document.text)", "ValueError")
    assert fault.traceback.endswith("\nLookupError")
    assert "which led to" in fault.traceback
    assert "secret" not in fault.summary + fault.traceback
    assert fault.message == "no number in a secret of the page"


def test_an_exception_of_a_library_is_placed_at_the_line_that_called_it(make_document):
    outcome = build_chain(("parse", own("call_a_library")), tables())(make_document(text="{"))
    assert outcome.fault.error == "json.decoder.JSONDecodeError"
    assert (
        outcome.fault.where
        == f"{__name__}, line {call_a_library.__code__.co_firstlineno + 1}, in call_a_library"
    )


def test_what_is_not_about_the_document_is_no_rejection(make_document):
    for function, error in (("use_memory_up", MemoryError), ("interrupt", KeyboardInterrupt)):
        with pytest.raises(error):
            build_chain(("parse", own(function)), tables())(make_document(text="x"))


def test_the_time_of_each_step_is_added_up_for_the_caller(make_document):
    chain, seconds = build_chain(SHORT, tables()), {"url": 1.0}
    assert list(chain.run([[make_document(html=PAGE)]], seconds)) == [chain(make_document(html=PAGE))]
    assert list(seconds) == list(SHORT)
    assert seconds["url"] > 1.0


def test_a_chain_travels_as_its_specification(make_document):
    chain = build_chain(DEFAULT_STEPS, tables())
    document = make_document(html=PAGE)
    outcome = chain(document)
    twin = pickle.loads(pickle.dumps(chain))
    assert isinstance(twin, Chain)
    assert twin(document) == outcome


def test_in_isolation_the_outcome_is_the_same(make_document):
    chain, document = build_chain(SHORT, tables()), make_document(html=PAGE)
    with chain.isolation():
        isolated = chain(document)
    assert isolated == chain(document)


def test_the_prefilter_changes_no_outcome_but_the_name_of_the_rule(make_document):
    plain, spared = (
        build_chain(DEFAULT_STEPS, tables(language=LanguageTable(prefilter=p))) for p in (False, True)
    )
    german = make_document(html=f"<html><body><p>{GERMAN * 20}</p></body></html>")
    assert (rule(plain(german)), rule(spared(german))) == ("language.not_kept", "prefilter.language")
    english = make_document(html=PAGE)
    assert plain(english) == spared(english)


def test_with_the_whole_ledger_a_kept_document_says_what_every_rule_measured(make_document):
    chain = build_chain(DEFAULT_STEPS, tables(quality=QualityTable(ledger="all")))
    kept = chain(make_document(html=PAGE))
    assert isinstance(kept, Document)
    assert {finding.stage for finding in kept.findings} == {"url", "parse", "language", "quality"}
    assert not any(finding.rejected for finding in kept.findings)
    assert not build_chain(DEFAULT_STEPS, tables())(make_document(html=PAGE)).findings


def test_every_file_that_the_tables_name_is_named():
    named = tables(
        url=UrlTable(block_hosts=("h",), block_words=("w",)),
        language=LanguageTable(model="l.bin"),
        classifier=(ClassifierTable(name="x", model="c.bin", label="l", threshold=0.5),),
        decontaminate=DecontaminateTable(against=("b.jsonl",)),
    )
    assert files_of(named) == {
        "h": "url.block_hosts",
        "w": "url.block_words",
        "l.bin": "language.model",
        "c.bin": "classifier.model",
        "b.jsonl": "decontaminate.against",
    }
    assert files_of(tables()) == {}


def said_by_a_new_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_chain_loads_no_model_before_it_is_used():
    program = (
        "import sys; from stages.chain import *;build_chain(DEFAULT_STEPS,"
        " StepTables(max_document_bytes=1));print([m for m in ('trafilatura', 'fasttext', 'spacy',"
        " 'phonenumbers', 'torch', 'ray') if m in sys.modules])"
    )
    assert said_by_a_new_process(program) == "[]"


@pytest.mark.parametrize(
    ("steps", "before"),
    [("parse quality", "[False, False]"), (f"parse quality {own('shout')}", "[True, True]")],
)
def test_torch_is_loaded_for_a_function_of_the_users_and_else_not_but_can_be(steps, before):
    program = f"""
import sys
from stages.chain import build_chain
from stages.steps.catalogue import StepTables
from stages.document import Document, Place
chain = build_chain({steps.split()}, StepTables(max_document_bytes=10**7))
text = "Don't split this by white space, Mr. Smith. " * 20
chain(Document(doc_id=bytes(16), source="a", place=Place(file="f", offset=0, length=1), raw_hash=bytes(16), text=text,
    language="en"))
import thinc.compat
print(["torch" in sys.modules, thinc.compat.has_torch])
import torch
print(torch.tensor([1, 2]).sum().item())
"""
    assert said_by_a_new_process(program).split("\n") == [before, "3"]


def purged_by(document: Document, by: str) -> PurgedSets:
    text = build_chain(SHORT, tables())(document)
    assert isinstance(text, Document)
    return {
        "id": PurgedSets(doc_ids=frozenset({document.doc_id})),
        "raw": PurgedSets(hashes=frozenset({document.raw_hash})),
        "url": PurgedSets(urls=frozenset({normalise_url(document.url or "")})),
        "host": PurgedSets(hosts=frozenset({"example.com"})),
        "text": PurgedSets(hashes=frozenset({text.text_hash or b""})),
        "clean": PurgedSets(hashes=frozenset({text_hash(text.text.replace("a@b.co", "<EMAIL>"))})),
    }[by]


@pytest.mark.parametrize(
    ("by", "stage"),
    [("id", "url"), ("raw", "url"), ("url", "url"), ("host", "url"), ("text", "parse"), ("clean", "pii")],
)
def test_what_was_purged_stays_out_at_the_stage_where_it_is_known(make_document, by, stage):
    document = make_document(html=PAGE.replace("library", "library, a@b.co,"))
    chain = build_chain(DEFAULT_STEPS, tables(purged=purged_by(document, by)))
    outcome = chain(document)
    assert isinstance(outcome, Rejection)
    assert (outcome.finding.stage, outcome.finding.rule) == (stage, "purged")
    other = make_document(html=PAGE.replace("winter", "summer"), url="https://other.example/")
    assert isinstance(chain(other), Document)


def test_the_purge_filter_works_also_where_the_usual_stages_are_missing(make_document):
    document = make_document(text="some text")
    for purged in (
        PurgedSets(doc_ids=frozenset({document.doc_id})),
        PurgedSets(hashes=frozenset({text_hash("some text")})),
        PurgedSets(hashes=frozenset({text_hash("some text")})),
    ):
        outcome = build_chain(("parse",), tables(purged=purged))(document)
        assert isinstance(outcome, Rejection)
        assert (outcome.finding.stage, outcome.finding.rule) == ("parse", "purged")


def test_the_same_page_by_another_address_is_not_purged_by_url(make_document):
    document = make_document(html=PAGE)
    purged = PurgedSets(
        urls=frozenset({normalise_url(document.url or "")}), hosts=frozenset({"gone.example"})
    )
    chain = build_chain(SHORT, tables(purged=purged))
    assert isinstance(chain(replace(document, url="https://example.com/other")), Document)
    assert rule(chain(replace(document, url="http://EXAMPLE.com:80/page#top"))) == "purged"
    assert isinstance(chain(replace(document, url=None)), Document)
    assert content_hash(document.payload) == document.raw_hash


def test_a_document_with_other_fields_is_that_of_the_standard_library(make_document):
    document = make_document(html="<p>x", labels=(("a", "b"),), edits=(Edit(stage="s", kind="k", count=1),))
    changes = {"text": "x", "findings": (Finding(stage="s", rule="r"),), "decoded": object(), "payload": b""}
    changed = document.but(**changes)
    assert changed == replace(document, **changes) and changed.decoded is changes["decoded"]
    assert document.payload == b"<p>x" and document.but() == document
    with pytest.raises(AttributeError):
        document.but(txt="x")
