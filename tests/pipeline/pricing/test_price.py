"""`sluice plan` of a data recipe: what it says beside what the run comes to, where that is kept, and wrong calls."""

from __future__ import annotations

import gzip
import json
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.phases.predicted import priced_again
from pipeline.results.estimates import PREDICTION_FILE
from tests.support.inputs.cc_index import make_crawl
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import fingerprint, recipe, run, summary_of, write_recipe

NAMES = {
    "documents", "kept_documents", "kept_share", "tokens", "processor_hours", "wall_hours", "memory", "disk", "output",
    "requests", "money", "sample_documents",
}  # fmt: skip
ALL = ("--sample-bytes", "1000000000")


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    return make_tiny_crawl(tmp_path_factory.mktemp("crawl"))


def planned(folder: Path, plain: dict[str, Any], *words: str) -> list[str]:
    return ["plan", str(write_recipe(folder / "recipe.toml", plain)), *words]


def told(call: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, float]]:
    assert main([*call, "--json"]) == 0
    found: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


def test_inputs_that_are_read_whole_give_what_the_run_gives(
    crawl: dict[str, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = recipe(str(tmp_path / "out"), crawl)
    found = told(planned(tmp_path, plain, *ALL), capsys)
    assert not (tmp_path / "out").exists()
    assert {name for name in found if "." not in name} == NAMES
    steps = {name.partition(".")[2] for name in found if "." in name}
    assert steps >= {
        "read",
        "parse",
        "language",
        "quality",
        "pii",
        "write",
        "compare",
        "tokenize",
        "lineage",
        "start",
    }
    assert all(each["low"] <= each["value"] <= each["high"] for each in found.values())
    summary = run(tmp_path, plain)
    for name, counted in (
        ("documents", "num_documents"),
        ("kept_documents", "num_kept"),
        ("tokens", "num_tokens"),
    ):
        real = summary[counted]
        assert found[name] == {
            "value": pytest.approx(real),
            "low": pytest.approx(real),
            "high": pytest.approx(real),
        }


def test_a_part_of_the_inputs_bounds_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(5)
    for file in range(3):
        texts = (" ".join(["word", str(chance.random())] * chance.randint(5, 200)) for _ in range(1_000))
        rows = (json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{file}.jsonl").write_text("".join(rows))
    plain = recipe(str(tmp_path / "out"), {"rows": (f"{tmp_path}/*.jsonl",)})
    plain["source"][0]["steps"] = ["parse"]
    found = told(planned(tmp_path, plain, "--sample-bytes", "1500000", "--seed", "3"), capsys)
    summary = run(tmp_path, plain)
    assert summary["num_documents"] == 3_000
    for name, real in (("documents", 3_000), ("tokens", summary["num_tokens"])):
        assert found[name]["low"] < real < found[name]["high"]
        assert found[name]["high"] < 1.3 * found[name]["low"]


def test_what_is_cut_inside_documents_is_said_to_be_left_out(
    crawl: dict[str, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = recipe(str(tmp_path / "out"), {"posts": crawl["posts"]}, dedup={"inside": {"method": "line"}})
    assert main(planned(tmp_path, plain)) == 0
    assert "[dedup.inside] cuts" in capsys.readouterr().err


def test_records_that_an_index_selects_are_priced_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = recipe(str(tmp_path / "out"), {"web": ()})
    crawl = make_crawl(tmp_path / "crawl")
    plain["source"] = [{"name": "web", "index": crawl.index, "where": "fetch_status = 200"}]
    found = told(planned(tmp_path, plain, *ALL), capsys)
    assert found["documents"]["value"] == pytest.approx(sum(row["fetch_status"] == 200 for row in crawl.rows))


def test_a_prediction_is_kept_for_its_run_and_shapes_no_byte_of_it(
    crawl: dict[str, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = recipe(str(tmp_path / "out"), crawl)
    call = planned(tmp_path, plain, "--keep")
    assert main(call) == 0
    assert (tmp_path / "out" / PREDICTION_FILE).exists()
    run(tmp_path, plain)
    predicted = summary_of(str(tmp_path / "out"))["prediction"]["estimates"]
    assert predicted.keys() >= NAMES
    report = (tmp_path / "out/report.html").read_text()
    assert "Predicted and real" in report
    run(tmp_path, recipe(str(tmp_path / "other"), crawl))
    assert summary_of(str(tmp_path / "other"))["prediction"] is None
    assert "Predicted and real" not in (tmp_path / "other/report.html").read_text()
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(tmp_path / "other"))
    capsys.readouterr()
    assert main(call) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_prediction_of_other_settings_is_not_taken(
    crawl: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    plain = recipe(str(tmp_path / "out"), crawl)
    assert main(planned(tmp_path, plain, "--keep")) == 0
    run(tmp_path, recipe(str(tmp_path / "out"), crawl, quality={"min_words": 20}))
    assert summary_of(str(tmp_path / "out"))["prediction"] is None


def test_a_run_is_priced_again_by_what_was_read(
    crawl: dict[str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lineage.storage.folder import Folder
    from pipeline.results.estimates import Prediction
    from pipeline.results.unit_results import ReadResult

    assert main(planned(tmp_path, recipe(str(tmp_path / "out"), crawl), "--keep")) == 0
    kept = Prediction.from_json(json.loads(Folder(str(tmp_path / "out")).read(PREDICTION_FILE)))

    class Unit:
        num_bytes, seconds = 10, {"all": 36_000.0}

    results: Any = [Unit()]
    assert priced_again(results, 40, None) == ", about 40.00 processor hours to read all"
    assert ", about 40.00 processor hours in all (0.00 predicted), money " in priced_again(results, 40, kept)
    assert priced_again([], 40, None) == ""
    assert ReadResult.__slots__  # the stand-in has two fields of it


def test_a_file_in_one_compressed_stream_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(2)
    rows = (
        json.dumps({"text": " ".join(str(chance.random()) for _ in range(60))}) + "\n" for _ in range(8_000)
    )
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(rows).encode(), 1))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "a.jsonl.gz"),)})
    plain["source"][0]["steps"] = ["parse"]
    assert main(planned(tmp_path, plain, "--sample-bytes", "70000", "--json")) == 0
    answer = capsys.readouterr()
    assert "1 file of the sample cannot be read from within" in answer.err
    assert json.loads(answer.out)["documents"]["value"] == pytest.approx(8_000, rel=0.05)


def long_and_short_rows() -> tuple[bytes, int]:
    """Rows that are long first and short then, and their number."""
    chance = random.Random(4)
    texts = [" ".join(str(chance.random()) for _ in range(words)) for words in (*[400] * 10, *[3] * 1_500)]
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts), len(texts)


def test_a_small_compressed_file_is_read_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, num = long_and_short_rows()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "a.jsonl.gz"),)})
    plain["source"][0]["steps"] = ["parse"]
    found = told(planned(tmp_path, plain), capsys)
    summary = run(tmp_path, plain)
    assert set(found["documents"].values()) == {num}
    assert all(each == pytest.approx(summary["num_tokens"]) for each in found["tokens"].values())


def test_the_beginning_of_a_compressed_stream_has_an_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(4)
    texts = (" ".join(str(chance.random()) for _ in range(chance.randint(3, 90))) for _ in range(5_000))
    (tmp_path / "a.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in texts).encode())
    )
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "a.jsonl.gz"),)})
    plain["source"][0]["steps"] = ["parse"]
    found = told(planned(tmp_path, plain, "--sample-bytes", "200000"), capsys)
    assert found["sample_documents"]["value"] < 500
    assert found["documents"]["low"] < 5_000 < found["documents"]["high"]


@pytest.mark.parametrize(
    ("steps", "low", "high"), [(["parse"], 5_000, 6_500), (["parse", "language"], 0, 12)]
)
def test_a_sample_of_which_all_or_no_documents_stay_is_not_certain_of_the_rest(
    steps: list[str], low: int, high: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(4)
    rows = (json.dumps({"text": " ".join(str(chance.random()) for _ in range(30))}) for _ in range(6_000))
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "a.jsonl"),)}, dedup={"near": False})
    plain["source"][0]["steps"] = steps
    found = told(planned(tmp_path, plain, "--sample-bytes", "100000"), capsys)
    num, share, kept = (found[name] for name in ("sample_documents", "kept_share", "kept_documents"))
    assert share["value"] == (1 if high > 12 else 0)
    assert 0.99 * (1 - 0.05 ** (1 / num["value"])) < share["high"] - share["low"]
    assert 0 < share["high"] <= 1
    assert kept["low"] < kept["high"] and low <= kept["low"] <= kept["value"] <= kept["high"] < high


@pytest.mark.parametrize(("words", "what"), [
    (("--cores", "0"), "--cores 0: expected at least 1"),
    (("--sample-bytes", "0"), "--sample-bytes 0: expected at least 1"),
    (("--price-put", "-1"), "'-1': expected a price, 0 or more"),
    (("--price-core-hour", "nan"), "'nan': expected a price, 0 or more"),
    (("--search",), "--search is of a training recipe"),
    (("--set", "source.0.inputs=[\"/nowhere/*.warc\"]"), "/nowhere"),
])  # fmt: skip
def test_a_wrong_call_is_one_sentence(
    words: tuple[str, ...],
    what: str,
    crawl: dict[str, tuple[str, ...]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        code = main(planned(tmp_path, recipe(str(tmp_path / "out"), crawl), *words))
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    assert what in capsys.readouterr().err


def test_an_input_without_a_document_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("")
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "a.jsonl"),)})
    assert main(planned(tmp_path, plain)) == 2
    assert "holds no document; expected some" in capsys.readouterr().err


def test_an_option_of_a_data_recipe_is_refused_for_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {"run": {"name": "t"}, "train": {"data": "out", "output": "o", "model": "debug", "steps": 1}}
    assert main(planned(tmp_path, training, "--cores", "4")) == 2
    assert "--cores is of a data recipe" in capsys.readouterr().err


def test_a_submission_says_its_price_first_and_goes_on_without(
    crawl: dict[str, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.cli.submit import _print_price

    path = str(write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), crawl)))
    _print_price(Namespace(no_price=True), ["run", path])
    _print_price(Namespace(no_price=False), ["run", path, "--try", "3"])
    _print_price(Namespace(no_price=False), ["verify", "s3://bucket/out"])
    assert capsys.readouterr().err == ""
    _print_price(Namespace(no_price=False), ["run", path])
    answer = capsys.readouterr()
    assert "\nprocessor time " in answer.err
    assert (tmp_path / "out" / PREDICTION_FILE).exists()
    _print_price(Namespace(no_price=False), ["run", path, "--set", 'source.0.inputs=["/nowhere/*.warc"]'])
    assert "no price: " in capsys.readouterr().err
