"""[repeat.language.NAME]: the documents in one language are read as often as its own table says, exactly, whether
it is a source, a part of one, or stands in one with others."""

from __future__ import annotations

import json
import random
import shutil
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lineage.index.checksums import sum_file
from lineage.index.output_index import Shard, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.checksum_update import update_checksums
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.demo.prose import Writer
from pipeline.inspect.hooks import verify_hooks
from pipeline.recipe.checks import check_steps_of
from pipeline.recipe.load import load
from tests.support.outputs.repeats import Row, ask, assert_exact, edited, shuffled_copy, times_on_disk
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, summary_of, write_recipe

CLUSTERS = {1: 13, 2: 5, 3: 3, 6: 1}
"""How many clusters of each size each language has."""
OF_ALL = {"1": 0.4, "2": 2, "3": 2.25}
GERMAN = {"1": 1.5, "2": 0, "4": 5}
ITALIAN = {"1": 1, "2": 3}
REPEAT = {
    "by": "cluster_size",
    "table": OF_ALL,
    "language": {"deu_Latn": {"table": GERMAN}, "it": {"table": ITALIAN}},
}
OWN = {"de": "deu_Latn", "it": "it"}
"""The name of its own table, by the language of a document."""
KEPT: tuple[tuple[str, Any], ...] = (("parts", "all"), ("mixed", ["de", "en", "it"]))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of texts in three languages in five files of two sources, the copies of a text anywhere; and those
    of each language in a file of its own."""
    folder: Path = tmp_path_factory.mktemp("inputs")
    drawn = random.Random(5)
    rows = []
    for language in ("en", "de", "it"):
        writer, of_language = Writer(language, drawn), []
        for size, num in CLUSTERS.items():
            for cluster in range(num):
                text = " ".join(writer.sentence() for _ in range(4))
                name = f"https://{language}-{size}-{cluster}.example.org"
                of_language += [{"text": text, "id": f"{name}/{copy}"} for copy in range(size)]
        write(folder / f"{language}.jsonl", of_language)
        rows += of_language
    drawn.shuffle(rows)
    for number, name in enumerate(("web-0", "web-1", "web-2", "posts-0", "posts-1")):
        write(folder / f"{name}.jsonl", rows[number::5])
    return folder


def write(file: Path, rows: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def repeated(inputs: Path, out: Path, keep: Any, repeat: dict[str, Any] = REPEAT) -> dict[str, Any]:
    """A recipe of two sources whose languages are told."""
    patterns = {name: (str(inputs / f"{name}-*.jsonl"),) for name in ("posts", "web")}
    plain = recipe(str(out), patterns, repeat=repeat, tokenize={"group_files": 2, "shard_tokens": 3_000})
    plain["language"] = {"keep": keep, "min_score": 0.0}
    for source in plain["source"]:
        source["steps"] = ["parse", "language", "identity", "dedup.exact"]
    return plain


@pytest.fixture(scope="module")
def outs(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run for each way to keep languages."""
    folder: Path = tmp_path_factory.mktemp("run")
    for name, keep in KEPT:
        run(folder, repeated(inputs, folder / name, keep))
    return {name: folder / name for name, _ in KEPT}


def rows_and_times(out: Path) -> tuple[dict[str, Row], dict[Row, Fraction]]:
    """The row of each kept document, by its language and its cluster over the whole corpus, and the times of
    each."""
    found = ask(
        out,
        "SELECT d.doc_id, d.language, p.source, coalesce(size, 1) FROM documents d JOIN placements p USING (doc_id)"
        " LEFT JOIN (SELECT cluster_id, count(*) AS size FROM documents GROUP BY ALL) USING (cluster_id)",
    )
    assert Counter((language, size) for _, language, _, size in found) == {
        (language, size): num for language in ("de", "en", "it") for size, num in CLUSTERS.items()
    }
    row_of: dict[str, Row] = {}
    times: dict[Row, Fraction] = {}
    for doc_id, language, source, size in found:
        table = {"de": GERMAN, "it": ITALIAN}.get(language, OF_ALL)
        firsts = sorted(map(int, table))
        first = firsts[bisect_right(firsts, size) - 1]
        row: Row = (source, OWN[language], first) if language in OWN else (source, first)
        row_of[doc_id], times[row] = row, Fraction(str(table[str(first)]))
    return row_of, times


@pytest.mark.parametrize("name", [name for name, _ in KEPT])
def test_a_language_is_read_as_often_as_its_own_table_says(name: str, outs: dict[str, Path]) -> None:
    out = outs[name]
    row_of, times = rows_and_times(out)
    assert_exact(out, row_of, times)
    parts = {f"{source}.{language}" for source in ("posts", "web") for language in ("de", "en", "it")}
    sources = {shard.source for shard in read_index(Folder(str(out))).shards}
    assert sources == (parts if name == "parts" else {"posts", "web"})
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


def test_a_source_whose_language_the_recipe_gives_follows_its_table(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = repeated(inputs, out, "all")
    plain["source"] = [
        {"name": name, "inputs": [str(inputs / f"{language}.jsonl")], "language": label,
         "steps": ["parse", "identity", "dedup.exact"]}
        for name, language, label in (("german", "de", "de-AT"), ("italian", "it", "ita_Latn"), ("english", "en", "en"))
    ]  # fmt: skip
    del plain["language"]
    run(tmp_path, plain)
    read = Counter[tuple[str, str | None]]()
    for size in summary_of(str(out))["repeats"]:
        read[size["source"], size.get("language")] += size["num_readings"]
    # 13 × 1.5 = 19.5 → 20, (5 + 3) × 0, 1 × 5; 13 × 1, 9 × 3; 13 × 0.4 = 5.2 → 5, 5 × 2, 4 × 2.25.
    assert read == {("german", "deu_Latn"): 25, ("italian", "it"): 40, ("english", None): 24}
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


def test_documents_whose_language_nobody_named_follow_the_table_of_all(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = repeated(inputs, out, ["de", "en", "it"])
    plain["source"][0]["steps"] = ["parse", "identity", "dedup.exact"]
    run(tmp_path, plain)
    told = {(size["source"], size.get("language")) for size in summary_of(str(out))["repeats"]}
    assert told == {("posts", None), ("web", None), ("web", "deu_Latn"), ("web", "it")}
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


@pytest.mark.usefixtures("small_ray")
@pytest.mark.parametrize(("name", "keep"), KEPT)
def test_the_same_bytes_on_two_processors_and_from_shuffled_inputs(
    name: str, keep: Any, outs: dict[str, Path], inputs: Path, tmp_path: Path
) -> None:
    plain = repeated(inputs, tmp_path / "out", keep)
    run(tmp_path, plain | {"ray": ON_RAY})
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(outs[name]))
    shuffled = shuffled_copy(inputs, tmp_path / "inputs")
    run(tmp_path, repeated(shuffled, tmp_path / "shuffled", keep))
    ours, theirs = (
        [(s.source, s.shard, s.hash, s.repeats) for s in read_index(Folder(str(each))).shards]
        for each in (tmp_path / "shuffled", outs[name])
    )
    assert ours == theirs


def test_a_table_that_says_what_that_of_all_says_changes_no_byte(inputs: Path, tmp_path: Path) -> None:
    # A row's sum is met in each language for itself, so that only whole times can be alike.
    whole = {"1": 1, "2": 2, "3": 4}
    of_all = {"by": "cluster_size", "table": whole}
    own = of_all | {"language": {"de": {"table": whole}}}
    for name, repeat in (("own", own), ("all", of_all)):
        run(tmp_path, repeated(inputs, tmp_path / name, "all", repeat))
    indexes = [(tmp_path / name / "index.json").read_bytes() for name in ("own", "all")]
    assert indexes[0] == indexes[1]


def test_a_recipe_without_such_a_table_is_recorded_as_before(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tmp_path, repeated(inputs, out, "all", {"by": "cluster_size", "table": OF_ALL}))
    assert (out / "recipe.toml").read_text().count("[repeat") == 2  # [repeat] and [repeat.table]
    said = json.loads((out / "run.json").read_text())
    assert "language" not in said["identity"]["recipe"]["repeat"]
    assert {frozenset(size) for size in said["repeats"]} == {
        frozenset({"source", "first", "times", "num_documents", "num_tokens", "num_readings"})
    }


@pytest.mark.parametrize("name", [name for name, _ in KEPT])
def test_verify_counts_the_times_of_languages_anew(name: str, outs: dict[str, Path], tmp_path: Path) -> None:
    here = tmp_path / "out"
    shutil.copytree(outs[name], here)
    before = read_index(Folder(str(here))).shards
    number = next(k for k, shard in enumerate(before) if shard.repeats == 3)  # as only Italian texts are

    def once_less(shards: list[Shard]) -> list[Shard]:
        return [replace(each, repeats=each.repeats - (k == number)) for k, each in enumerate(shards)]

    folder = edited(here, once_less)
    [problem] = verify(folder, verify_hooks(folder)).problems
    assert (problem.check, problem.where) == (
        "repeats.times",
        f"index.json, shard {before[number].source}/{before[number].shard:05d}",
    )
    assert "an epoch reads it 2 times; by [repeat]" in problem.message


def test_verify_holds_what_run_json_says_of_a_language_to_the_documents(
    outs: dict[str, Path], tmp_path: Path
) -> None:
    here = tmp_path / "out"
    shutil.copytree(outs["mixed"], here)
    said = json.loads((here / "run.json").read_text())
    size = next(size for size in said["repeats"] if size.get("language") == "it")
    size["language"] = "deu_Latn"
    (here / "run.json").write_text(json.dumps(said))
    folder = Folder(str(here))
    update_checksums(folder, [sum_file(folder, "run.json")])
    assert "repeats.sizes" in {each.check for each in verify(folder, verify_hooks(folder)).problems}


@pytest.mark.parametrize("name", [name for name, _ in KEPT])
def test_trace_says_which_table_has_a_document_read_again(
    name: str, outs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = outs[name]
    row_of, _ = rows_and_times(out)
    italian = next(doc_id for doc_id, row in row_of.items() if row[1:] == ("it", 2))
    source = row_of[italian][0]
    [size] = [
        each
        for each in summary_of(str(out))["repeats"]
        if (each["source"], each.get("language"), each["first"]) == (source, "it", 2)
    ]
    assert main(["trace", str(out), "--doc", italian, "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)
    [place] = traced["placements"]
    num = size["num_documents"]
    assert place["repeats"] == 3
    assert place["why_repeated"] == (
        f"its cluster has {traced['cluster']['size']} documents; of clusters of 2 and more, source {source!r} has"
        f" {num} document{'s' * (num > 1)} in it, which [repeat.language.it] has read 3 times, {3 * num} times"
        " together"
    )
    english = next(
        doc_id for doc_id, times in times_on_disk(out).items() if times > 1 and len(row_of[doc_id]) == 2
    )
    assert main(["trace", str(out), "--doc", english, "--json"]) == 0
    assert (
        ", which [repeat] has read 2" in json.loads(capsys.readouterr().out)["placements"][0]["why_repeated"]
    )


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("fr", {}, r"repeat\.language\.fr is given, and no text in that language comes: language\.keep and"
               r" source\.language name de, en, it: add it there, or leave the table out"),
    ("xx", {}, r"repeat\.language\.xx is given, and no text in that language comes"),
    ("xx", {"language": {"keep": "all"}}, r"repeat\.language\.xx is given, and no text in that language comes:"
                                         r" language\.model = 'bundled' has no label for it"),
    ("xx", {"language": {"keep": []}}, r"language\.model = 'bundled' has no label for it"),
    ("german", {}, r"repeat\.language\.german is given \(did you mean 'de'\?\)"),
    ("norwegian", {}, r"repeat\.language\.norwegian: expected the label of a language, such as de .*'nb'"),
    ("no language", {}, r"repeat\.language\.no language: expected the label of a language"),
    ("ita_Latn", {}, r"repeat\.language has tables for it, ita_Latn, which are one language: keep one"),
]  # fmt: skip


@pytest.mark.parametrize(("label", "tables", "says"), WRONG)
def test_a_language_that_cannot_be_is_refused_in_a_sentence(
    label: str, tables: dict[str, Any], says: str, inputs: Path, tmp_path: Path
) -> None:
    own = {"it": {"table": ITALIAN}, label: {"table": GERMAN}}
    plain = repeated(inputs, tmp_path / "out", ["de", "en", "it"], REPEAT | {"language": own})
    with pytest.raises(RecipeError, match=says) as raised:
        check_steps_of(load(write_recipe(tmp_path / "r.toml", plain | tables)))
    assert "\n" not in str(raised.value)


def test_a_table_of_a_language_where_no_source_tells_one_is_refused(inputs: Path, tmp_path: Path) -> None:
    plain = repeated(inputs, tmp_path / "out", "all")
    del plain["language"]
    for source in plain["source"]:
        source["steps"] = ["parse", "identity", "dedup.exact"]
    with pytest.raises(RecipeError, match=r"language\.keep and source\.language name none"):
        check_steps_of(load(write_recipe(tmp_path / "r.toml", plain)))


def test_a_language_that_a_step_of_the_users_or_another_model_may_name_has_a_table(
    inputs: Path, tmp_path: Path
) -> None:
    plain = repeated(inputs, tmp_path / "out", [], REPEAT | {"language": {"xx": {"table": {"1": 2}}}})
    plain["language"]["model"] = "glotlid.bin"
    check_steps_of(load(write_recipe(tmp_path / "r.toml", plain)))
    plain["language"] = {"keep": ["de"]}
    plain["source"][0]["steps"] = ["parse", "my_steps:Language", "identity", "dedup.exact"]
    check_steps_of(load(write_recipe(tmp_path / "r.toml", plain)))
