"""Model steps of a run: encoders and classes on actors of their own, with the bytes that steps alone would
give."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.recipe import RecipeError
from pipeline import process
from pipeline.cluster.capacity import ResourceError
from pipeline.cluster.dataset import WorkerDiedError
from pipeline.model_steps import phase
from pipeline.model_steps.actors import models_of, plan_actors
from pipeline.model_steps.phase import DEVICES
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.steps import step_tables
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from pipeline.recipe.tables import RayTable
from pipeline.units.bad_records import TooManyBadRecordsError
from stages.chain import build_chain
from stages.document import Document, Rejection
from stages.reading.options import InputCounts, ReadOptions
from stages.reading.reader import read_documents
from tests.pipeline.cluster.test_dataset import ray_data_log
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe
from tests.support.steps.model_steps import EVENTS
from tests.support.steps.tiny_encoder import make_encoder

OWN = "tests.support.steps.model_steps"
Inputs = dict[str, tuple[str, ...]]


@pytest.fixture(autouse=True)
def events(small_ray: None) -> Path:
    """The folder where the steps of these tests leave what they did, empty; Ray's workers know it too."""
    folder = Path(os.environ[EVENTS])
    for path in folder.iterdir():
        path.unlink()
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Two files of 600 and 40 texts, of which every ninth sells pills."""
    folder: Path = tmp_path_factory.mktemp("texts")
    for file, num in (("a", 600), ("b", 40)):
        rows = [{"id": str(number), "text": a_text(file, number)} for number in range(num)]
        rows[-1]["id"] = "last"
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"texts": (str(folder / "*.jsonl"),)}


def a_text(file: str, number: int) -> str:
    what = "pills" if number % 9 == 0 else "pages"
    return f"text {number} of {file} is about {what} and {' '.join(['words'] * (number % 23))} " + chr(
        97 + number % 26
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny encoder."""
    return make_encoder(tmp_path_factory.mktemp("encoder"))


def with_steps(folder: Path, inputs: Inputs, *steps: str, **tables: Any) -> dict[str, Any]:
    """A recipe whose sources have these steps behind parse, and that compares nothing."""
    plain = recipe(str(folder / "out"), inputs, ray=ON_RAY)
    for source in plain["source"]:
        source["steps"] = ["parse", *steps, "identity"]
    return plain | tables


def edu(model: str, **keys: Any) -> dict[str, Any]:
    return {"name": "edu", "model": model, "label": "high", "threshold": 0.5, **keys}


def step(name: str, **keys: Any) -> list[dict[str, Any]]:
    return [{"name": f"{OWN}:{name}", **keys}]


def findings_of(folder: Path) -> dict[bytes, tuple[str, str | None, float | None]]:
    """Status, rule and value of each document of a finished output."""
    found = {}
    for file in sorted((folder / "out" / "lineage" / "documents").rglob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found[row["doc_id"]] = row["status"], row["rule"], row["value"]
    return found


def inline(folder: Path, plain: dict[str, Any]) -> dict[bytes, Document | Rejection]:
    """What the steps make of each document when they are called in this process, one document at a time."""
    wanted = load(write_recipe(folder / "inline.toml", plain))
    chain = build_chain(wanted.source[0].steps, step_tables(wanted))
    outcomes = {}
    for unit in plan_run(wanted).units:
        options = ReadOptions(source=unit.source, file=unit.inputs[0].name, format="jsonl")
        with open(unit.inputs[0].url, "rb") as file:
            for document in read_documents(file, options, InputCounts()):
                assert isinstance(document, Document)
                outcomes[document.doc_id] = chain(document)
    return outcomes


def test_an_encoder_on_actors_judges_as_it_does_inside_the_steps(tmp_path, texts, encoder, capfd) -> None:
    plain = with_steps(tmp_path, texts, "classifier", classifier=[edu(encoder)])
    summary = run(tmp_path, plain)
    found, expected = findings_of(tmp_path), inline(tmp_path, plain)
    assert found.keys() == expected.keys()
    assert 50 < summary["rejected"]["classifier"]["classifier.edu"] < 600
    for doc_id, outcome in expected.items():
        status, rule, value = found[doc_id]
        if isinstance(outcome, Rejection):
            assert (status, rule) == ("rejected", "classifier.edu")
            # A batch pads texts, which changes the order of sums.
            assert value == pytest.approx(outcome.finding.value, abs=1e-5)
        else:
            assert status == "kept"
    assert set(summary["devices"]) == {"classifier.edu"}
    assert re.fullmatch("cpu [A-Z0-9]+", summary["devices"]["classifier.edu"])
    assert ".cc:" not in capfd.readouterr().err, "a line of Ray's own core"


def test_equal_bytes_with_one_and_two_actors_of_two_models_with_steps_between(
    tmp_path, texts, encoder
) -> None:
    prints = []
    for actors in ([1, 1], [2, 2]):
        folder = tmp_path / str(actors[0])
        own = step("Shout", batch_size=7, num_cpus=0.5, actors=actors)
        judge = [edu(encoder, batch_size=16, num_cpus=0.5, actors=actors)]
        plain = with_steps(folder, texts, "classifier", "pii", f"{OWN}:Shout", classifier=judge, step=own)
        run(folder, plain)
        prints.append(fingerprint(str(folder / "out")))
    assert prints[0] == prints[1]
    expected = inline(tmp_path, plain)
    [part] = pq.read_table(tmp_path / "1" / "out" / "documents" / "texts" / "part-00001.parquet").to_pylist()[
        :1
    ]
    outcome = expected[part["doc_id"]]
    assert isinstance(outcome, Document)
    assert part["text"] == outcome.text == outcome.text.upper()


def test_the_number_of_actors_may_differ_from_call_to_call_and_the_batches_may_not(tmp_path, texts) -> None:
    plain = with_steps(tmp_path, texts, f"{OWN}:Shout", step=step("Shout", batch_size=7, actors=[1, 1]))
    summary = run(tmp_path, plain)
    plain["step"][0]["actors"] = [1, 3]
    assert run(tmp_path, plain) == summary
    plain["step"][0]["batch_size"] = 8
    with pytest.raises(RecipeError, match=r"step\[0\]\.batch_size is 8 now and was 7"):
        run(tmp_path, plain)


def test_a_model_works_while_reading_goes_on(tmp_path, texts, events) -> None:
    """Reading of the file waits, at its last document, for the model to have worked on its first ones."""
    plain = with_steps(tmp_path, texts, f"{OWN}:wait_for_the_model", f"{OWN}:SaysSo")
    summary = run(tmp_path, plain)
    assert summary["num_kept"] == 640
    assert not summary["faults"]
    assert len(list(events.glob("asked-*"))) >= 600 // 32


def test_the_operators_stand_in_ray_datas_log_under_the_names_of_models_and_stages(
    tmp_path, texts, encoder
) -> None:
    before = len(ray_data_log().read_text()) if ray_data_log().exists() else 0
    judge = [edu(encoder)]
    run(
        tmp_path,
        with_steps(tmp_path, texts, "language", "classifier", "pii", f"{OWN}:Shout", classifier=judge),
    )
    plans = re.findall(r"Execution plan of Dataset .*", ray_data_log().read_text()[before:])
    kinds = re.findall(r"(TaskPool|ActorPool)MapOperator\[MapBatches\((.*?)\)\]", plans[0])
    assert kinds == [
        ("TaskPool", "read->parse->language"),
        ("ActorPool", "classifier.edu"),
        ("TaskPool", "classifier->pii"),
        ("ActorPool", f"{OWN}:Shout"),
    ]
    assert re.findall(r"MapBatches\((.*?)\)", plans[1]) == [f"{OWN}:Shout->write"]


def test_a_source_without_models_is_read_as_before(tmp_path, texts) -> None:
    plain = with_steps(tmp_path, {"plain": texts["texts"], "shouted": texts["texts"]})
    plain["source"][1]["steps"] = ["parse", f"{OWN}:Shout", "identity"]
    summary = run(tmp_path, plain)
    assert summary["num_kept"] == 1280
    operators = [stats["operator"] for stats in summary["datasets"][:3]]
    assert operators == ["read->parse", f"read->parse->{OWN}:Shout", f"{OWN}:Shout->write"]


def test_a_file_of_a_class_is_given_to_it_and_shapes_the_run(tmp_path, texts) -> None:
    (tmp_path / "least.txt").write_text("60")
    own = step("Shout", files={"least": str(tmp_path / "least.txt")})
    plain = with_steps(tmp_path, texts, f"{OWN}:Shout", step=own)
    summary = run(tmp_path, plain)
    [(stage, rules)] = summary["rejected"].items()
    assert stage == f"{OWN}:Shout" and rules["too_quiet"] > 100
    (tmp_path / "least.txt").write_text("61")
    with pytest.raises(RecipeError, match=r"least\.txt has changed"):
        run(tmp_path, plain)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Raises",
            r"builtins?\.?KeyError|KeyError at tests\.support\.steps\.model_steps, line \d+, in __call__",
        ),
        ("DropsSome", "gave 0 outcomes for 1 document: expected one for each, in their order"),
        ("GivesTexts", "gave a str: expected the document or its Rejection"),
    ],
)
def test_what_a_class_does_wrong_is_said_with_its_stage_and_the_document(tmp_path, texts, name, said) -> None:
    with pytest.raises(TooManyBadRecordsError) as caught:
        run(tmp_path, with_steps(tmp_path, texts, f"{OWN}:{name}"))
    line = next(line for line in str(caught.value).splitlines() if line.strip().startswith(f"{OWN}:{name}"))
    assert re.search(said, line), line
    assert re.search(r"first on document [0-9a-f]{32} \([ab]\.jsonl at \d+\)", line)


def test_only_the_documents_on_which_a_class_raises_are_lost(tmp_path, texts) -> None:
    plain = with_steps(tmp_path, texts, f"{OWN}:Raises", limits={"max_bad_records": 0.5})
    summary = run(tmp_path, plain)
    num_pills = sum(
        "pills" in a_text(file, number) for file, num in (("a", 600), ("b", 40)) for number in range(num)
    )
    assert summary["rejected"] == {f"{OWN}:Raises": {f"{OWN}:Raises.error": num_pills}}


def test_a_class_that_cannot_be_made_is_said_in_one_sentence(tmp_path, texts) -> None:
    with pytest.raises(
        RecipeError, match=r"CannotBeMade cannot be made: OSError at .*: the weights are elsewhere"
    ):
        run(tmp_path, with_steps(tmp_path, texts, f"{OWN}:CannotBeMade"))


def test_a_class_that_always_kills_its_worker_ends_the_run_which_names_the_fragment(tmp_path, texts) -> None:
    plain = with_steps(tmp_path, texts, f"{OWN}:DiesAlways", ray={"num_cpus": 2, "retries": 1})
    with pytest.raises(
        WorkerDiedError, match=r"DiesAlways of fragment work/units/\S+ of \S+jsonl: its worker died 2"
    ):
        run(tmp_path, plain)


def test_another_kind_of_device_is_refused_before_it_scores(tmp_path, texts) -> None:
    plain = with_steps(tmp_path, texts, f"{OWN}:DiesAlways", ray={"num_cpus": 2, "retries": 0})
    with pytest.raises(WorkerDiedError):
        run(tmp_path, plain)
    (tmp_path / "out" / DEVICES).write_text(json.dumps({f"{OWN}:DiesAlways": "NVIDIA H100 80GB HBM3"}))
    with pytest.raises(
        RecipeError, match=r"scored on 'cpu', and the run's other scores are of 'NVIDIA H100 80GB HBM3'"
    ):
        run(tmp_path, plain)


@pytest.mark.slow
def test_ten_deaths_in_a_model_step_change_no_byte(tmp_path, texts, events) -> None:
    own = step("DiesTenTimes", batch_size=16, num_cpus=0.5, actors=[2, 2])
    more = {"num_cpus": 2, "retries": 10}  # a fragment may bear all ten
    plain = with_steps(tmp_path / "killed", texts, f"{OWN}:DiesTenTimes", step=own, ray=more)
    run(tmp_path / "killed", plain)
    assert len(list(events.glob("died-*"))) == 10
    plain["run"]["output"] = str(tmp_path / "calm" / "out")
    run(tmp_path / "calm", plain)
    assert fingerprint(str(tmp_path / "killed" / "out")) == fingerprint(str(tmp_path / "calm" / "out"))


def test_without_a_gpu_a_model_runs_on_processors_and_says_so(tmp_path, texts, encoder) -> None:
    plain = with_steps(tmp_path, texts, "classifier", classifier=[edu(encoder, num_gpus=1.0)])
    wanted = load(write_recipe(tmp_path / "recipe.toml", plain))
    said: list[str] = []
    actors = plan_actors(models_of([wanted.source[0].steps], step_tables(wanted)), wanted.ray, said.append)
    assert said == ["classifier.edu: no node has a GPU, so it runs on processors."]
    assert actors["classifier.edu"].reserved == {"CPU": 1.0}


def test_actors_that_leave_no_processor_for_reading_share_them(tmp_path, texts, encoder) -> None:
    plain = with_steps(tmp_path, texts, "classifier", classifier=[edu(encoder, num_cpus=4.0)])
    wanted = load(write_recipe(tmp_path / "recipe.toml", plain))
    said: list[str] = []
    actors = plan_actors(models_of([wanted.source[0].steps], step_tables(wanted)), RayTable(), said.append)
    assert said == ["classifier.edu: shares the 4 processors with reading, which needs one of them."]
    assert actors["classifier.edu"].reserved == {}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"resources": {"accel": 1.0}}, r"no node has CPU 1, accel 1, which a classifier.edu actor needs"),
        ({"num_cpus": 64.0}, r"no node has CPU 64, which a classifier.edu actor needs"),
        (
            {"resources": {"data": 1.0}, "actors": [2, 2]},
            r"there is room for 1 classifier.edu actors of .*, and 2 are wanted",
        ),
    ],
)
def test_what_no_node_has_is_refused_by_stage_and_key(tmp_path, texts, encoder, keys, said) -> None:
    plain = with_steps(tmp_path, texts, "classifier", classifier=[edu(encoder, **keys)])
    with pytest.raises(ResourceError, match=said):
        run(tmp_path, plain)


def test_a_custom_resource_places_the_actors(tmp_path, texts) -> None:
    own = step("Shout", resources={"data": 1.0}, num_cpus=0.0)
    summary = run(tmp_path, with_steps(tmp_path, texts, f"{OWN}:Shout", step=own))
    lines = "\n".join(summary["datasets"][0]["lines"])
    assert f"MapBatches({OWN}:Shout)" in lines


def test_texts_after_parse_are_kept_as_without_models(tmp_path, texts) -> None:
    kept = []
    for own in ((), (f"{OWN}:Shout",)):
        folder = tmp_path / str(len(own))
        plain = with_steps(folder, texts, *own)
        plain["run"]["keep_text"] = True
        assert run(folder, plain)["parsed_texts"]
        kept.append([path.read_bytes() for path in sorted((folder / "out" / "texts").rglob("*.parquet"))])
    assert len(kept[0]) == 2
    assert kept[0] == kept[1]


def test_a_run_from_an_earlier_output_asks_no_encoder_again_and_says_so(tmp_path, texts, encoder) -> None:
    plain = with_steps(tmp_path, texts, "classifier", classifier=[edu(encoder)])
    plain["run"]["keep_text"] = True
    run(tmp_path, plain)
    plain["run"]["output"] = str(tmp_path / "again" / "out")
    plain["classifier"][0]["threshold"] = 0.6
    changed = load(write_recipe(tmp_path / "changed.toml", plain))
    with pytest.raises(
        RecipeError, match=r"classifier\.edu is an encoder, which a run from an earlier output"
    ):
        process.run(changed, ProgressReporter(quiet=True), from_output=str(tmp_path / "out"))


def test_fragments_are_gone_from_a_finished_unit(tmp_path, texts, monkeypatch) -> None:
    def stop(*_: object) -> None:
        raise InterruptedError("here")

    monkeypatch.setattr(process, "compare", stop)
    with pytest.raises(InterruptedError):
        run(tmp_path, with_steps(tmp_path, texts, f"{OWN}:Shout"))
    left = {path.suffix for path in (tmp_path / "out" / "work" / "units").rglob("*") if path.is_file()}
    assert left == {".parquet", ".json"}
    assert not list((tmp_path / "out" / "work").rglob("fragments.json"))


def test_a_long_plan_asks_its_models_some_hundreds_of_files_after_the_others(
    tmp_path, texts, monkeypatch
) -> None:
    monkeypatch.setattr(phase, "most_rows", lambda: 1)
    summary = run(tmp_path, with_steps(tmp_path, texts, f"{OWN}:Shout"))
    assert [stats["num_units"] for stats in summary["datasets"][:4]] == [1, 1, 1, 1]
    assert summary["num_kept"] == 640
