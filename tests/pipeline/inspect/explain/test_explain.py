"""The story of one page: every step, past the first that says no, and none of the page's control codes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from lineage.ids import content_hash
from pipeline.inspect.explain.explanation import Explanation, as_json, explain, render, with_whole_ledger
from stages.chain import DEFAULT_STEPS, Chain, build_chain
from stages.document import Document, Place
from stages.quality.options import QualityTable
from stages.steps.catalogue import StepTables

SENTENCES = (
    "The committee met again in the spring to discuss the results of the survey that it had sent out to the"
    " town. ",
    "Most of the people who answered said that they would like to have a new library with more rooms for"
    " children. ",
    "Others have asked for a better bus to the station, and for the old bridge to be opened again before"
    " winter. ",
    "The mayor, at mayor@town.example, promised that he would read every letter and that none would be lost."
    " ",
)
GERMAN = "Das ist ein deutscher Satz über das Wetter im Herbst. "
NORWEGIAN = (
    "Utvalget skal møtes igjen til våren for å drøfte resultatene av undersøkelsen"
    " sammen med innbyggerne i byen. "
)
JAPANESE = "委員会は春に再び集まり、町の人々と調査の結果について話し合う予定である。"


@pytest.fixture(scope="module")
def chain():
    return build_chain(DEFAULT_STEPS, with_whole_ledger(StepTables(max_document_bytes=10**7)))


def page(*paragraphs: str, url: str = "https://example.com/page") -> Document:
    html = (
        f"<html><body><article>{''.join(f'<p>{p}</p>' for p in paragraphs)}</article></body></html>".encode()
    )
    return Document(
        doc_id=content_hash(html),
        source="web",
        place=Place(file="a.warc.gz", offset=7, length=1),
        is_html=True,
        raw_hash=content_hash(html),
        payload=html,
        num_bytes=len(html),
        url=url,
    )


def shown(story: Explanation) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    render(story, console)
    return console.file.getvalue()


def test_a_kept_page_s_story_has_every_step_with_what_it_measured(chain):
    story = explain(page(*SENTENCES), chain)
    assert story.deciding is None
    assert [step.stage for step in story.steps] == list(chain.stages)
    by_stage = {step.stage: step for step in story.steps}
    assert {finding.rule for finding in by_stage["language"].findings} == {
        "language.not_kept",
        "language.low_score",
    }
    assert len(by_stage["quality"].findings) > 15
    assert by_stage["pii"].verdict == "changed"
    assert [(edit.kind, edit.count) for edit in by_stage["pii"].edits] == [("email", 1)]
    assert "<EMAIL>" in story.document.text


def test_a_story_in_a_pipe_has_no_frames(chain):
    story = explain(page(*SENTENCES), chain)
    assert not set(shown(story)) & set("╭│╰─")
    assert max(map(len, shown(story).split("\n"))) < 2 * max(map(len, story.document.text.split("\n")))
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True)
    render(story, terminal)
    assert set("╭│╰─") <= set(terminal.file.getvalue())


@pytest.mark.parametrize(
    ("paragraphs", "language", "table", "told"),
    [
        (SENTENCES, "en", "en", "judged by the table of en"),
        ([GERMAN * 8], "de", "de", "judged by the table of de"),
        ([NORWEGIAN * 4], "no", None, "language no: the rules have no table for it (quality.no_table)"),
        ([JAPANESE * 8], "ja", None, "language ja: the rules have no table for it (quality.no_table)"),
    ],
)
def test_the_story_names_whose_table_judged(
    chain: Chain, paragraphs: Sequence[str], language: str, table: str | None, told: str
) -> None:
    """Past the step `language`, which keeps English alone: never by the table of another language."""
    story = explain(page(*paragraphs), chain)
    (step,) = (step for step in story.steps if step.stage == "quality")
    assert (story.document.language, step.table) == (language, table)
    assert told in shown(story)
    plain: Any = as_json(story)
    assert [step.get("table", "absent") for step in plain["steps"]] == [
        table if step["stage"] == "quality" else "absent" for step in plain["steps"]
    ]
    if table is None:
        assert [finding.rule for finding in step.findings] == ["quality.no_table"]


def test_a_label_of_another_spelling_is_told_with_its_table() -> None:
    tables = StepTables(max_document_bytes=10**7, quality=QualityTable(rules=("gopher_repetition",)))
    story = explain(
        page(NORWEGIAN * 4), build_chain(("parse", "language", "quality"), with_whole_ledger(tables))
    )
    assert "judged by the table of nb, for language no" in shown(story)


def fail(document: Document) -> Document:
    raise ValueError(f"no use for \x1b[31m{document.text[:13]}\ud800")


def test_a_step_that_raises_shows_its_line_and_what_it_said():
    story = explain(
        page(*SENTENCES), build_chain(("parse", f"{__name__}:fail"), StepTables(max_document_bytes=10**7))
    )
    assert story.deciding is not None
    assert story.deciding.rule == f"{__name__}:fail.error"
    line = fail.__code__.co_firstlineno + 1
    assert f'test_explain.py", line {line}, in fail' in shown(story)
    assert r"ValueError: no use for \x1b[31mThe committee" in shown(story)
    raised = as_json(story)["steps"][1]["raised"]
    assert raised["where"] == f"{__name__}, line {line}, in fail"
    json.dumps(raised, ensure_ascii=False).encode()


def test_a_rejected_page_s_story_goes_on_and_the_first_rejection_decides(chain):
    story = explain(page(GERMAN), chain)
    assert story.deciding is not None
    assert story.deciding.rule == "language.not_kept"
    verdicts = {step.stage: step.verdict for step in story.steps}
    assert (verdicts["language"], verdicts["quality"]) == ("rejected", "rejected")
    assert list(verdicts) == list(chain.stages)


def test_the_story_agrees_with_a_run(chain):
    for document in (page(*SENTENCES), page(GERMAN), page("Too short.")):
        outcome = chain(document)
        story = explain(document, chain)
        if isinstance(outcome, Document):
            assert story.deciding is None and replace(story.document, payload=b"") == outcome
        else:
            assert story.deciding == outcome.finding


def test_where_nothing_comes_out_of_parse_the_rest_is_named_as_not_run(chain):
    story = explain(page(), chain)
    assert story.deciding is not None and story.deciding.rule == "parse.empty"
    assert story.not_run == chain.stages[chain.stages.index("parse") + 1 :]
    assert "not run" in shown(story)


def test_the_story_as_json_is_one_plain_document(chain):
    story = explain(page(*SENTENCES), chain)
    plain = json.loads(json.dumps(as_json(story), allow_nan=False))
    assert (plain["status"], plain["verdict"], plain["offset"]) == ("kept", None, 7)
    assert [step["stage"] for step in plain["steps"]] == list(chain.stages)
    changed = {step["stage"]: step["text"] for step in plain["steps"] if "text" in step}
    assert set(changed) == {"parse", "pii"}
    assert "mayor@town.example" in changed["parse"]
    assert changed["pii"] == plain["text"]
    rejected = as_json(explain(page(GERMAN), chain))
    assert rejected["status"] == "rejected"
    assert rejected["verdict"]["rule"] == "language.not_kept"


def test_the_terminal_shows_verdict_rules_values_and_the_text(chain):
    told = shown(explain(page(GERMAN), chain))
    assert "rejected at language: language.not_kept" in told
    assert told.count("← decides") == 1
    assert GERMAN.strip() in told
    edited = shown(explain(page(*SENTENCES), chain))
    assert "email × 1" in edited
    assert "- The mayor, at mayor@town.example" in edited
    assert "+ The mayor, at <EMAIL>" in edited


def test_markup_and_control_codes_of_a_page_are_shown_and_not_obeyed(chain):
    told = shown(
        explain(
            page("[red]not a colour[/red] \u202eesrever \u200b" * 9, url="https://x.example/\x1b[31m[/]"),
            chain,
        )
    )
    assert "[red]not a colour[/red]" in told
    assert "\x1b" not in told and "\u202e" not in told
    assert "\\x1b[31m[/]" in told, "what the URL holds is shown, as an escape"
