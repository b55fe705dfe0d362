"""The certificate of a replay: what it says, how a lie in it or in what it was made from is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from lineage.ids import content_hash, set_digest
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.small_out.output import SmallOut
from tests.support.outputs.small_out.records import Record
from tests.support.training.forgotten import Trained, copy_out
from trainer.checkpoint.digest import weights_digest
from trainer.checkpoint.store import publish_complete, read_position
from trainer.evidence import certificate as certificates
from trainer.evidence import check
from trainer.evidence.certificate import certify_replay, records
from trainer.evidence.certificate_file import CertificateError, as_bytes
from trainer.evidence.certified import open_certified
from trainer.evidence.compare import compare_runs
from trainer.huggingface.export import export_run
from trainer.provenance.facts import ablation_name
from trainer.recovery.forget import forget

make_certificate = partial(certificates.make_certificate, digest=weights_digest)
check_certificate = partial(check.check_certificate, digest=weights_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A run that forgot a document, and one that never read it; a copy of it all may be changed."""

    trained: Trained
    fresh: Trained
    record: Record
    purge_id: str

    @property
    def output(self) -> Path:
        return self.trained.run.output


@pytest.fixture(scope="module")
def world(small: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> World:
    trained = Trained(small=small, folder=tmp_path_factory.mktemp("world"))
    copy_out(small, trained.folder)
    trained.run.start()
    export_run(Folder(str(trained.run.output)), trained.folder / "exported")
    record = trained.record_first_read_in(range(5, 6))
    proxy = ablation_name(trained.run.recipe().run.name, "0001-corner")
    record_training(trained.out, str(trained.folder / "proxy"), proxy)
    purge_id = trained.purge(record)
    assert forget(trained.run.recipe(), ["all"], restart=False).trains
    with pytest.raises(
        CertificateError, match=r"it read documents of purge .* first in step 5; sluice train"
    ):
        make_certificate(open_certified(Folder(str(trained.run.output)), ["all"]))
    trained.run.start()
    begins_from = {"init_from": str(trained.folder / "exported"), "steps": 2}
    child = replace(trained, name="child", changes=begins_from)
    child.run.start()
    fresh = replace(trained, name="fresh")
    fresh.run.start()
    return World(trained=trained, fresh=fresh, record=record, purge_id=purge_id)


@pytest.fixture(scope="module")
def certificate(world: World) -> dict[str, Any]:
    name, _ = certify_replay(Folder(str(world.output)), [world.purge_id], weights_digest)
    return dict(json.loads((world.output / name).read_text()))


def wrong(world: World, row: dict[str, Any], output: Path | None = None) -> list[str]:
    """What the check names of a certificate whose checksum is right."""
    row = {name: value for name, value in row.items() if name != "checksum"}
    lines = check_certificate(as_bytes(row), "cert.json", Folder(str(output or world.output)))
    return [f"{line.what}: {line.why}" for line in lines if not line.holds]


def test_it_says_what_was_forgotten_and_how_the_weights_came_to_be(
    world: World, certificate: dict[str, Any]
) -> None:
    (purge,) = certificate["purges"]
    assert purge["num_documents"] >= 1
    assert (purge["applied"], purge["first_step"], purge["readings"] > 0) == (0, 5, True)
    if purge["num_documents"] == 1:
        assert purge["documents_digest"] == set_digest([world.record.doc_id])
    links = [
        (link["attempt"], link["parent"], link["first_step"], link["end_step"])
        for link in certificate["chain"]
    ]
    assert links == [(1, None, 0, 4), (2, 1, 4, 10)]
    assert (
        len({content["content_fingerprint"] for link in certificate["chain"] for content in link["contents"]})
        == 2
    )
    assert certificate["inexact"] == []
    kinds = {gap["kind"] for gap in certificate["not_covered"]}
    assert kinds == {"tokenizer", "ablation", "export", "undone steps", "begun from it"}
    assert world.record.text[:20] not in json.dumps(certificate)
    assert wrong(world, certificate) == []
    data = (world.output / "certificates/step-00000010.attempt-2.json").read_bytes()
    assert all(line.holds for line in check_certificate(data, "cert.json", Folder(str(world.output))))
    changed = check_certificate(
        data.replace(b'"readings": ', b'"readings":  '), "cert.json", Folder(str(world.output))
    )
    assert [line.what for line in changed if not line.holds] == ["checksum"]


def test_a_field_that_a_certificate_has_twice_is_named(world: World, certificate: dict[str, Any]) -> None:
    row = {name: value for name, value in certificate.items() if name != "checksum"}
    body = as_bytes(row).rpartition(b',\n "checksum"')[0]
    body = body.replace(b'"applied": 0', b'"applied": 3,\n   "applied": 0')
    data = body + b',\n "checksum": "' + content_hash(body).hex().encode() + b'"\n}\n'
    lines = check_certificate(data, "cert.json", Folder(str(world.output)))
    assert [line.what for line in lines if not line.holds] == ["checksum"]


def test_a_purge_of_two_outputs_is_found_in_both(
    world: World,
) -> None:
    """The second is a copy of the first, made after the purge."""
    outs = [world.trained.folder / name for name in ("out", "out-copied")]
    shutil.copytree(*outs)
    data = [{"out": str(out), "prefix": f"{out.name}/"} for out in outs]
    of_both = replace(world.trained, name="of-both", changes={"data": data, "steps": 2})
    of_both.run.start()
    output = of_both.run.output
    row = dict(make_certificate(open_certified(Folder(str(output)), ["all"])))
    assert [purge["purge_id"] for purge in row["purges"]] == [world.purge_id] * 2
    assert wrong(world, row, output) == []
    cut = {**row, "purges": row["purges"][:1]}
    assert wrong(world, cut, output) == [f"purge {world.purge_id}: of {outs[1]}: found and not named"]


def test_the_command_writes_checks_and_compares(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, output, out = str(tmp_path / "cert.json"), str(world.output), world.trained.out.url
    assert main(["certify", output, "--to", cert]) == 0
    assert "0 applied" in capsys.readouterr().out
    page = (tmp_path / "cert.html").read_text()
    assert world.purge_id in page and "http" not in page.split("</style>")[1].replace("http-equiv", "")
    assert main(["certify", "--check", cert, output, out]) == 0
    assert "NO" not in capsys.readouterr().out
    assert main(["certify", "--check", cert, output, "--against", str(world.fresh.run.output)]) == 0
    assert "equal: " in capsys.readouterr().out
    assert main(["certify", "--check", cert, str(world.fresh.run.output)]) == 1
    assert "it is of the run" in capsys.readouterr().out
    (tmp_path / "none.json").write_text("{}")
    assert main(["certify", "--check", str(tmp_path / "none.json"), output]) == 1
    assert "is no certificate" in capsys.readouterr().err
    assert main(["certify", output, "--purge", "x", "--to", cert]) == 2
    assert "no purge 'x'" in capsys.readouterr().err
    assert main(["certify", str(tmp_path), "--to", cert]) == 2
    assert "is not the output of a training run" in capsys.readouterr().err


def cut(row: dict[str, Any]) -> None:
    del row["chain"][0]


def cut_newest(row: dict[str, Any]) -> None:
    del row["chain"][-1]


def without_gap(kind: str) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        row["not_covered"] = [gap for gap in row["not_covered"] if gap["kind"] != kind]

    return change


def also_said(part: str, **otherwise: object) -> Callable[[dict[str, Any]], None]:
    """The first entry of a list twice, with other values where it stands first."""

    def change(row: dict[str, Any]) -> None:
        row[part].insert(0, {**row[part][0], **otherwise})

    return change


def set_in(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        for name in path[:-1]:
            row = row[name]  # type: ignore[index]
        row[path[-1]] = to  # type: ignore[index]

    return change


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        (set_in("purges", 0, "readings", to=0), "readings is 0, found"),
        (set_in("purges", 0, "num_documents", to=7), "num_documents is 7, found"),
        (set_in("purges", 0, "documents_digest", to="0" * 32), "documents_digest is"),
        (cut, "chain: attempt 1: it is part of the chain and cut out"),
        (set_in("chain", 1, "parent", to=None), "chain: attempt 2: parent is None, found 1"),
        (set_in("chain", 0, "contents", to=[]), "chain: attempt 1: contents is"),
        (set_in("chain", 0, "recipe_hash", to="0" * 32), "chain: attempt 1: recipe_hash is"),
        (set_in("commitment", "root", to="0" * 64), "commitment: root is"),
        (set_in("weights", "digest", to="0" * 64), "weights and moments: digest is"),
        (set_in("checkpoint", "files_digest", to="0" * 32), "checkpoint: files_digest is"),
        (set_in("not_covered", to=[]), "found and not named"),
        (set_in("init_from", to=[{"url": "/x"}]), "init_from"),
        (set_in("purges", 0, "purge_id", to="x"), "no purge 'x'"),
        (
            set_in("checkpoint", "name", to="step-00000002.attempt-7"),
            "has no checkpoint step-00000002.attempt-7",
        ),
        (set_in("purges", 0, "applied", to=-1), "applied is -1, found 0"),
        (set_in("purges", 0, "first_step", to=9), "first_step is 9, found 5"),
        (cut_newest, "chain: attempt 2: it is part of the chain and cut out"),
        (set_in("chain", 0, "end_step", to=2), "chain: attempt 1: end_step is 2, found 4"),
        (set_in("chain", 1, "rollback", to=None), "chain: attempt 2: rollback is None, found 1"),
        (set_in("chain", 1, "recipe_changes", to=["x"]), "chain: attempt 2: recipe_changes is"),
        (set_in("chain", 0, "layout", "zero", to=0), "chain: attempt 1: layout is"),
        (set_in("chain", 1, "device", to="cuda"), "chain: attempt 2: device is 'cuda'"),
        (set_in("inexact", to=["x"]), "what makes it inexact"),
        (set_in("checkpoint", "plan_fingerprint", to="0"), "checkpoint: plan_fingerprint is"),
        (
            set_in("weights", "tensors", "model.norm.weight", to="0" * 64),
            "tensors are others, model.norm.weight first",
        ),
        (set_in("weights", "num_elements", to=3), "weights and moments: num_elements is 3"),
        (without_gap("export"), "not covered: export"),
        (without_gap("begun from it"), "not covered: begun from it"),
        (without_gap("undone steps"), "not covered: undone steps attempt 1: found and not named"),
        (also_said("not_covered"), "not covered: tokenizer"),
        (also_said("purges"), "it is named more often than it is recorded"),
        (also_said("chain", seed=7), "chain: it names attempts [1, 1, 2], found [1, 2]"),
        (lambda row: row["chain"].reverse(), "chain: it names attempts [2, 1], found [1, 2]"),
        (set_in("documents_digest_method", to="a sum of the ids"), "documents_digest_method: it says"),
        (set_in("purges", 0, "tokens", to=0), "documents: tokens is 0, found None"),
        (set_in("weights", "dtype", to="float64"), "weights and moments: dtype is"),
        (set_in("audited_by", to="nobody"), "audited_by: a certificate has no such field"),
    ],
)
def test_a_lie_in_a_certificate_is_named(
    lie: Callable[[dict[str, Any]], None], named: str, world: World, certificate: dict[str, Any]
) -> None:
    row = json.loads(json.dumps(certificate))
    lie(row)
    assert any(named in line for line in wrong(world, row)), wrong(world, row)


def test_a_checkpoint_that_was_swapped_is_named(world: World, certificate: dict[str, Any]) -> None:
    checkpoints = world.output / "checkpoints"
    mine, before = checkpoints / "step-00000010.attempt-2", checkpoints / "step-00000008.attempt-2"
    shutil.copytree(mine, world.output / "kept")
    try:
        for file in before.glob("*.distcp"):
            shutil.copy(file, mine / file.name)
        shutil.copy(before / ".metadata", mine / ".metadata")
        assert any(line.startswith("files of the checkpoint: ") for line in wrong(world, certificate))
        for file in before.glob("sums-*"):
            shutil.copy(file, mine / file.name)
        publish_complete(Folder(str(mine)), read_position(Folder(str(world.output / "kept"))))
        named = wrong(world, certificate)  # its own files agree with each other now
        assert any("tensors are others" in line for line in named)
    finally:
        shutil.rmtree(mine)
        (world.output / "kept").rename(mine)
    assert wrong(world, certificate) == []


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("attempts/00002.json", {"parent": None}, "the chain of checkpoints does not reach step 0"),
        ("attempts/00002.json", {"first_step": 2}, "by the facts in its output"),
        ("attempts/00001.setup", {"origin": {"url": "/w", "digest": "d"}}, "attempt 1 was set up with"),
        ("attempts/00001.setup", {"recipe_hash": "0"}, "attempt 1 was set up with"),
    ],
)
def test_a_lie_in_the_records_of_a_run_is_named(
    file: str, change: dict[str, Any], named: str, world: World, certificate: dict[str, Any]
) -> None:
    path = world.output / file
    before = path.read_bytes()
    path.write_text(json.dumps(json.loads(before) | change))
    try:
        assert any(named in line for line in wrong(world, certificate)), wrong(world, certificate)
        with pytest.raises(CertificateError, match="cannot be certified"):
            make_certificate(open_certified(Folder(str(world.output)), ["all"]))
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("attempts/00001.json", "the chain of checkpoints does not reach step 0: attempt 1 is not recorded"),
        ("attempts/00002.json", "chain: attempt 2: the run has no such attempt"),
        ("attempts/00001.setup", "attempt 1 was set up with (recipe, init_from, digest) = None"),
        ("attempts/00001.toml", "chain: attempt 2: recipe_changes is [], found None"),
        ("rollbacks/00001.json", "rollback 1 asks for another step, or is not recorded"),
        ("lineage.jsonl", "lineage.jsonl says nothing of what the run read"),
        ("model.json", "has no model.json"),
        ("exports/00001.json", "not covered: export"),
        ("checkpoints/step-00000010.attempt-2/complete.json", "has no checkpoint step-00000010.attempt-2"),
        ("checkpoints/step-00000010.attempt-2/.metadata", "files of the checkpoint: "),
    ],
)
def test_a_record_that_is_gone_is_named(
    file: str, named: str, world: World, certificate: dict[str, Any]
) -> None:
    path = world.output / file
    before = path.read_bytes()
    path.unlink()
    try:
        assert any(named in line for line in wrong(world, certificate)), wrong(world, certificate)
    finally:
        path.write_bytes(before)


def facts_where(keeps: Callable[[dict[str, Any]], bool]) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(line for line in data.splitlines(keepends=True) if keeps(json.loads(line)))


def is_of(attempt: int, kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda fact: (fact["fact"], fact.get("attempt")) == (kind, attempt)


def contents_of_the_replay(data: bytes) -> bytes:
    """As if the first attempt had read what the replay did."""
    read = [
        fact["content_fingerprint"]
        for fact in map(json.loads, data.splitlines())
        if fact["fact"] == "segment"
    ]
    return data.replace(read[0].encode(), read[-1].encode())


@pytest.mark.parametrize(
    ("file", "edit", "named"),
    [
        (
            "lineage.jsonl",
            facts_where(lambda fact: not is_of(1, "segment")(fact)),
            "that stand there otherwise now",
        ),
        ("lineage.jsonl", facts_where(lambda fact: not is_of(2, "start")(fact)), "attempt 2 was set up with"),
        ("lineage.jsonl", contents_of_the_replay, "that stand there otherwise now: of attempt 1 from step 0"),
        (
            "lineage.jsonl",
            lambda data: data.replace(b'"last_step":9', b'"last_step":3'),
            "last_step 9, there 3",
        ),
        (
            "lineage.jsonl",
            lambda data: data.replace(b'skipped_steps":[]', b'skipped_steps":[5]'),
            "there '[5]'",
        ),
        (
            "lineage.jsonl",
            lambda data: data.replace(b'\\"seed\\":0', b'\\"seed\\":1'),
            "was saved in the order",
        ),
        (
            "rollbacks/00001.json",
            lambda data: data.replace(b'"step": 4', b'"step": 2'),
            "asks for another step",
        ),
    ],
)
def test_records_that_were_edited_are_named_where_the_certificate_was_too(
    file: str, edit: Callable[[bytes], bytes], named: str, world: World, certificate: dict[str, Any]
) -> None:
    path = world.output / file
    before = path.read_bytes()
    path.write_bytes(edit(before))
    assert path.read_bytes() != before
    try:
        certified = open_certified(Folder(str(world.output)), ["all"])
        made = {name: certificate[name] for name in ("commitment", "weights")}
        found = wrong(world, records(certified) | made)
        assert any(named in line for line in found), found
        with pytest.raises(CertificateError, match="cannot be certified"):
            make_certificate(certified)
    finally:
        path.write_bytes(before)


def test_a_recipe_that_changed_on_the_way_is_told(world: World, certificate: dict[str, Any]) -> None:
    path = world.output / "attempts/00001.toml"
    before = path.read_text()
    path.write_text(before.replace("lr = 0.003", "lr = 0.002"))
    try:
        row = make_certificate(open_certified(Folder(str(world.output)), ["all"]))
        assert row["inexact"] == [
            "the recipe changed on the way: train.optimizer.lr is 0.003 now and was 0.002"
        ]
        assert any("what makes it inexact" in line for line in wrong(world, certificate))
    finally:
        path.write_text(before)


def test_damaged_facts_are_told_in_a_sentence(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.output / "lineage.jsonl"
    before = path.read_bytes()
    path.write_bytes(before[:-40])
    try:
        assert main(["certify", str(world.output), "--to", str(world.trained.folder / "cert.json")]) == 1
        assert f"of {path} is damaged" in capsys.readouterr().err
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("kind", "what", "why"),
    [
        ("other run", "run", "its readings are undone since"),
        ("ablation", "run", "its readings are undone since"),
        ("other run", "fresh", None),  # never read it
        ("other run", "none", None),
        ("set aside", "none", "it is there no more"),
        ("set aside", "step-00000010.attempt-2", None),
        ("export", "none", None),  # a copy that was made stays made
    ],
)
def test_what_came_to_its_end_since_makes_no_certificate_wrong(
    kind: str, what: str, why: str | None, world: World, certificate: dict[str, Any]
) -> None:
    named = what if kind == "set aside" else str(world.trained.folder / what)
    gap = {"kind": kind, "what": named, "why": "it read it 2 times"}
    row = {name: value for name, value in certificate.items() if name != "checksum"}
    row["not_covered"] = [*row["not_covered"], gap]
    (line,) = [
        line
        for line in check_certificate(as_bytes(row), "cert.json", Folder(str(world.output)))
        if line.what == f"not covered: {kind} {gap['what']}"
    ]
    assert (line.holds, line.why) == (why is not None, why or "named and not found: it read it 2 times")


def test_weights_to_begin_with_that_were_hidden_are_named(world: World) -> None:
    child = world.trained.folder / "child"
    row = make_certificate(open_certified(Folder(str(child)), ["all"]))
    (link,) = row["init_from"]
    assert (link["run"], link["step"], link["readings"] > 0) == (str(world.output), 10, True)
    assert [gap for gap in row["not_covered"] if gap["kind"] == "init_from"]
    hidden = {
        **row,
        "init_from": [],
        "not_covered": [g for g in row["not_covered"] if g["kind"] != "init_from"],
    }
    named = wrong(world, hidden, child)
    assert any(line.startswith("weights that the run began with (init_from)") for line in named)
    assert any(line.startswith("not covered: init_from") for line in named)
    setup = child / "attempts/00001.setup"
    before = setup.read_bytes()
    setup.write_text(json.dumps(json.loads(before) | {"origin": None}))
    try:
        assert any("attempt 1 was set up with" in line for line in wrong(world, hidden, child))
    finally:
        setup.write_bytes(before)


def test_weights_in_the_middle_that_were_hidden_are_named(world: World) -> None:
    child = replace(world.trained, name="child")
    export_run(Folder(str(child.run.output)), child.folder / "child-exported")
    begins_from = {"init_from": str(child.folder / "child-exported"), "steps": 2}
    grandchild = replace(world.trained, name="grandchild", changes=begins_from)
    grandchild.run.start()
    output = grandchild.run.output
    row = make_certificate(open_certified(Folder(str(output)), ["all"]))
    assert [link["run"] for link in row["init_from"]] == [str(child.run.output), str(world.output)]
    assert (row["init_from"][0]["readings"], row["init_from"][1]["readings"] > 0) == (0, True)
    skipped = {**row, "init_from": row["init_from"][1:]}
    assert any(
        line.startswith("weights that the run began with (init_from)")
        for line in wrong(world, skipped, output)
    )
    setup = child.run.output / "attempts/00001.setup"
    before = setup.read_bytes()
    setup.write_text(json.dumps(json.loads(before) | {"origin": None}))
    try:
        certified = open_certified(Folder(str(output)), ["all"])
        # made of records that say nothing of the first run
        hidden = records(certified) | {name: row[name] for name in ("commitment", "weights")}
        assert [link["run"] for link in hidden["init_from"]] == [str(child.run.output)]
        named = f"{child.run.output}, with whose weights it began: attempt 1 was set up with"
        assert any(named in line for line in wrong(world, hidden, output)), wrong(world, hidden, output)
        with pytest.raises(CertificateError, match="with whose weights it began: attempt 1 was set up with"):
            make_certificate(certified)
    finally:
        setup.write_bytes(before)


def test_weights_that_another_tool_trained_on_in_an_exported_folder_are_no_longer_that_runs(
    world: World, tmp_path: Path
) -> None:
    """save_pretrained into the folder leaves sluice.json there, and the config.json is the same."""
    exported = shutil.copytree(world.trained.folder / "exported", tmp_path / "exported")
    tensors = load_file(exported / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.5
    save_file(tensors, exported / "model.safetensors", metadata={"format": "pt"})
    begins_from = {"init_from": str(exported), "steps": 2}
    tuned = replace(world.trained, name="tuned", changes=begins_from)
    tuned.run.start()
    ours = records(open_certified(Folder(str(tuned.run.output)), ["all"]))
    child = records(open_certified(Folder(str(world.trained.folder / "child")), ["all"]))
    (link,), (theirs,) = ours["init_from"], child["init_from"]
    assert (link["run"], link["why_unknown"]) == (None, "nothing says which run made its weights")
    assert (theirs["run"], theirs["digest"] != link["digest"]) == (str(world.output), True)


def test_a_run_begun_again_with_other_weights_in_the_same_place_is_not_the_one_certified(
    world: World, tmp_path: Path
) -> None:
    exported = shutil.copytree(world.trained.folder / "exported", tmp_path / "exported")
    begun = replace(
        world.trained, name="begun-twice", changes={"init_from": str(exported), "steps": 2, "workers": 2}
    )
    begun.run.start()
    output = begun.run.output
    row = make_certificate(open_certified(Folder(str(output)), ["all"]))
    assert wrong(world, row, output) == []
    tensors = load_file(exported / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.5
    save_file(tensors, exported / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(output)
    begun.run.start()
    begun_with = "weights that the run began with (init_from)"
    assert any(line.startswith(begun_with) for line in wrong(world, row, output))


def test_other_weights_are_told_from_equal_ones(world: World) -> None:
    ours, theirs = Folder(str(world.output)), Folder(str(world.fresh.run.output))
    assert compare_runs(ours, theirs, weights_digest).equal
    other = replace(world.trained, name="other", changes={"optimizer": {"lr": 1e-3}})
    other.run.start()
    found = compare_runs(ours, Folder(str(other.run.output)), weights_digest)
    assert not found.equal and "tensors differ" in found.why and "need not" not in found.why
    with pytest.raises(RecipeError, match=r"it has no checkpoint of step 10, the newest"):
        compare_runs(ours, Folder(str(world.trained.folder / "child")), weights_digest)
