"""What a commitment says a run has read, against what tracing says document by document; and forged proofs."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import runpy
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import sluice
from lineage.ids import text_hash
from lineage.pages import normalise_url
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.rows import ShardSpan
from lineage.trace.exposure import Exposure, exposures, fold
from pipeline.cli.main import main
from pipeline.training.proofs import make_proof
from tests.support.checkout import ROOT
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.training.forgotten import HARD, Trained, copy_out
from trainer.evidence.commitment import tree
from trainer.evidence.commitment.commit import Commitment, canonical, commit_run, read_secret
from trainer.evidence.commitment.keys import KINDS, Kind, domain_subject, key_of, text_subjects
from trainer.evidence.commitment.prove import PublishedLeaves, proof_bytes, prove
from trainer.provenance.exposure import find_readings
from trainer.provenance.reached import read_facts
from trainer.recovery.forget import forget
from trainer.recovery.readings import find_purges

CHECKER: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "verify_proof.py"))
verify: Callable[[str, bytes], str] = CHECKER["verify"]
RefusedError: type[Exception] = CHECKER["RefusedError"]


class Values(NamedTuple):
    readings: int
    first_step: int
    last_step: int


class World(NamedTuple):
    trained: Trained
    commitment: Commitment

    @property
    def output(self) -> Folder:
        return Folder(str(self.trained.run.output))


@pytest.fixture(scope="module")
def world(small: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> World:
    trained = Trained(small=small, folder=tmp_path_factory.mktemp("committed"), changes={**HARD, "steps": 30})
    copy_out(small, trained.folder)
    trained.run.start()
    return World(trained, commit_run(Folder(str(trained.run.output))))


def traced(trained: Trained) -> dict[tuple[Kind, str], Values]:
    """By kind and subject, what tracing each document of the output alone adds up to."""
    return traced_in(trained.run.output, [trained.out])


def traced_in(output: Path, outs: Sequence[Folder]) -> dict[tuple[Kind, str], Values]:
    """The same of all outputs that a run read."""
    found: dict[tuple[Kind, str], list[Exposure]] = defaultdict(list)
    for out in outs:
        _trace_all(output, out, found)
    return {
        name: Values(len(read), min(e.step for e in read), max(e.step for e in read))
        for name, read in found.items()
    }


def _trace_all(output: Path, out: Folder, found: dict[tuple[Kind, str], list[Exposure]]) -> None:
    more = read_facts([str(output)], out.url)
    (run,) = fold(more.runs, more.segments)
    erased = {p.doc_id: p.erased_in for each in find_purges([out.url], ["all"]) for p in each.spans}
    for row in read_table(out, "documents").to_pylist():
        if row["shard"] is None:
            continue
        span = ShardSpan(row["source"], row["shard"], row["start"], row["num_tokens"])
        all_of_it = exposures(run, span, find_readings, erased.get(row["doc_id"], frozenset()))
        applied = [exposure for exposure in all_of_it if exposure.applied]
        names: list[tuple[Kind, str | None]] = [
            ("url", row["url"] and normalise_url(row["url"])),
            ("domain", row["domain"]),
            ("text", row["clean_hash"].hex()),
        ]
        for kind, subject in names:
            if subject and applied:
                found[kind, subject] += applied


def proved(output: Folder, root: str, kind: Kind, subject: str) -> Values | None:
    """What the proof says, once the checker has taken it."""
    proof = prove(output, kind, [subject])
    data = proof_bytes(proof)
    assert len(data) <= 10_000
    sentence = verify(root, data)
    assert sentence.startswith("present" if proof.leaf else "absent") and repr(subject) in sentence
    return proof.leaf and Values(*proof.leaf)


def test_proofs_say_what_tracing_each_document_adds_up_to(world: World) -> None:
    expected = traced(world.trained)
    assert {kind for kind, _ in expected} == set(KINDS) and world.commitment.num_leaves == len(expected)
    assert any(values.readings > 3 for values in expected.values())
    for (kind, subject), values in expected.items():
        assert proved(world.output, world.commitment.root, kind, subject) == values
    for number in range(100):
        for kind in KINDS:
            assert (
                proved(world.output, world.commitment.root, kind, f"https://absent.example/{number}") is None
            )


def test_a_leaf_of_another_kind_is_no_leaf_of_this_one(world: World) -> None:
    for kind, subject in list(traced(world.trained))[:10]:
        for other in KINDS:
            assert (proved(world.output, world.commitment.root, other, subject) is None) is (other != kind)


def test_the_root_does_not_depend_on_workers_or_on_when_it_is_made(world: World) -> None:
    assert commit_run(world.output, workers=2) == world.commitment


def test_what_was_read_stays_committed_when_a_purge_takes_every_document_of_a_shard(
    small: SmallOut, tmp_path: Path
) -> None:
    trained = Trained(small=small, folder=tmp_path, changes={"steps": 4})
    copy_out(small, tmp_path)
    trained.run.start()
    output = Folder(str(trained.run.output))
    before = commit_run(output)
    rows = read_table(trained.out, "placements").to_pylist()
    first = rows[0]["source"], rows[0]["shard"]
    of_shard = {row["doc_id"] for row in rows if (row["source"], row["shard"]) == first}
    kept = [record for record in small.records if record.status == "kept" and record.doc_id in of_shard]
    trained.purge(*kept)
    assert commit_run(output) == before


def test_a_purge_alone_leaves_what_was_read_and_a_replay_proves_absence(
    small: SmallOut, tmp_path: Path
) -> None:
    trained = Trained(small=small, folder=tmp_path)
    copy_out(small, trained.folder)
    trained.run.start()
    output, record = Folder(str(trained.run.output)), trained.record_first_read_in(range(5, 6))
    before, text = commit_run(output), text_hash(record.text).hex()
    read = proved(output, before.root, "text", text)
    assert read is not None and read.first_step == 5
    trained.purge(record)
    assert commit_run(output).root == before.root
    assert forget(trained.run.recipe(), ["all"], restart=False).trains
    trained.run.start()
    with pytest.raises(RecipeError, match=r"has no commitment of its newest checkpoint: sluice commit"):
        prove(output, "text", [text])
    after = commit_run(output)
    assert after.root != before.root and proved(output, after.root, "text", text) is None
    assert after.num_leaves == len(traced(trained)) < before.num_leaves
    with pytest.raises(RefusedError, match="is a proof against the root"):
        verify(before.root, proof_bytes(prove(output, "text", [text])))


def test_what_the_dead_attempt_of_a_run_read_is_not_committed_to(small: SmallOut, tmp_path: Path) -> None:
    trained = Trained(small=small, folder=tmp_path)
    copy_out(small, trained.folder)
    trained.run.start_and_kill(3)
    trained.run.start()
    commitment, expected = commit_run(Folder(str(trained.run.output))), traced(trained)
    for (kind, subject), values in expected.items():
        assert proved(Folder(str(trained.run.output)), commitment.root, kind, subject) == values


def row_of(output: Folder, kind: Kind, subject: str) -> dict[str, Any]:
    return prove(output, kind, [subject]).as_json()


def file_of(row: dict[str, Any]) -> bytes:
    return canonical(row) + b"\n"


def forged(world: World, other: Folder) -> Iterator[tuple[str, bytes]]:
    """300 forgeries of true proofs, with what was done."""
    chance = random.Random(7)
    output, names = world.output, sorted(traced(world.trained))
    present = [row_of(output, kind, subject) for kind, subject in names[:12]]
    # Keys depend on the run's folder. Beside the first or the last leaf there is one neighbour: a proof without the
    # other, or in the other order, would be the true one.
    proofs = (row_of(output, "url", f"https://absent.example/{number}") for number in range(100))
    absent = [proof for proof in proofs if len(proof["neighbours"]) == 2][:12]
    for number in range(160):
        proof = chance.choice(present + absent)
        data = bytearray(file_of(proof))
        # Another absent URL may lie between the same neighbours: its proof would be true.
        begin, length = (
            data.index(proof["subject"].encode()),
            0 if proof["present"] else len(proof["subject"]),
        )
        place = chance.choice([at for at in range(len(data)) if not begin <= at < begin + length])
        data[place] ^= 1 << chance.randrange(8)
        yield f"bit of byte {place} ({number})", bytes(data)
    for number in range(140):
        there, away = copy.deepcopy(chance.choice(present)), copy.deepcopy(chance.choice(absent))
        way = number % 14
        if way == 0:
            there["leaf"][chance.choice(("readings", "first_step", "last_step"))] += 1
        elif way == 1:
            there["subject"] += "x"
        elif way == 2:
            there["kind"] = next(kind for kind in KINDS if kind != there["kind"])
        elif way == 3:
            there["index"] = (there["index"] + 1) % world.commitment.num_leaves
        elif way == 4:
            there["path"] = there["path"][:-1]
        elif way == 5:
            there["path"].append("0" * 64)
        elif way == 6:
            there = row_of(other, there["kind"], there["subject"])
        elif way == 7:
            there["root"] = there["commitment"]["tree"]
        elif way == 8:
            there["commitment"]["num_leaves"] += 1
        elif way == 9:  # a text that is present is called absent, between neighbours of another
            there = {**away, "kind": there["kind"], "subject": there["subject"]}
        elif way == 10:
            there = {**away, "neighbours": away["neighbours"][:1]}
        elif way == 11:
            there = {**away, "neighbours": away["neighbours"][::-1]}
        elif way == 12:
            neighbours = [*away["neighbours"][:1], *chance.choice(absent)["neighbours"][-1:]]
            there = {**away, "neighbours": neighbours * (1 + (neighbours == away["neighbours"]))}
        else:
            there["commitment"]["run"] = there["run"] = "another"
        yield f"way {way} ({number})", file_of(there)


def test_300_forgeries_are_all_refused(world: World, small: SmallOut, tmp_path: Path) -> None:
    other = Trained(small=small, folder=tmp_path)
    copy_out(small, other.folder)
    other.run.start()
    commit_run(Folder(str(other.run.output)))
    taken, num = [], 0
    for what, data in forged(world, Folder(str(other.run.output))):
        num += 1
        with contextlib.suppress(RefusedError):
            taken.append((what, verify(world.commitment.root, data)))
    assert (num, taken) == (300, [])


def test_who_knows_all_leaves_cannot_deny_one(world: World) -> None:
    leaves = PublishedLeaves(world.output, world.commitment, read_secret(world.output))
    for kind, subject in traced(world.trained):
        proof = row_of(world.output, kind, subject)
        at, num = proof["index"], world.commitment.num_leaves
        key = key_of(bytes.fromhex(world.commitment.key), kind, subject)
        own = {
            "open": leaves.neighbour(at, key),
            "hidden": leaves.neighbour(at, bytes(byte ^ 255 for byte in key)),
        }
        assert own["open"]["key"] == key.hex() and own["hidden"]["key"] is None
        del proof["leaf"], proof["salt"], proof["index"], proof["path"]
        beside = {index: leaves.neighbour(index, key) for index in (at - 1, at + 1) if 0 <= index < num}
        for each in own.values():
            for chosen in ([at - 1, at], [at, at + 1], [at - 1, at + 1], [at], [at - 1], [at + 1], []):
                neighbours = [each if index == at else beside.get(index) for index in chosen]
                denial = {**proof, "present": False, "neighbours": [n for n in neighbours if n is not None]}
                with pytest.raises(RefusedError):
                    verify(world.commitment.root, file_of(denial))


def test_a_proof_of_absence_shows_no_key_that_the_head_tells_apart(world: World) -> None:
    shown = 0
    for number in range(200):
        for neighbour in row_of(world.output, "url", f"https://absent.example/{number}")["neighbours"]:
            assert neighbour["head"] < 1 << world.commitment.head_bits
            shown += neighbour["key"] is not None
    assert 0 < shown < 200


@pytest.mark.parametrize("num", [0, 1, 2, 3, 1023, 1024, 1025, 2500])
def test_a_tree_of_any_size_is_the_one_that_the_checker_climbs(num: int) -> None:
    hashes = [number.to_bytes(32, "big") for number in range(num)]
    blocks = [tree.root_of(hashes[at : at + tree.BLOCK_LEAVES]) for at in range(0, num, tree.BLOCK_LEAVES)]
    root = tree.root_of(hashes)
    assert tree.root_of(blocks) == root
    for index in {0, 1, num // 2, num - 2, num - 1} & set(range(num)):
        path = [each.hex() for each in tree.path_of(hashes, index)]
        assert CHECKER["climb"](hashes[index], index, num, path) == root


def test_the_commands_commit_prove_and_check(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, proof = world.output.url, str(tmp_path / "proof.json")
    assert main(["commit", output]) == 0
    assert f"root {world.commitment.root}\n" in capsys.readouterr().out
    text = next(subject for kind, subject in traced(world.trained) if kind == "text")
    record = next(r for r in world.trained.small.records if text_hash(r.text).hex() == text)
    (tmp_path / "article.txt").write_text(record.text + "\n", newline="")
    assert main(["prove", output, "--text", str(tmp_path / "article.txt"), "--to", proof]) == 0
    said = capsys.readouterr().out
    assert "present: text" in said
    root = said.split("verify_proof.py ")[1].split()[0]
    assert CHECKER["main"]([root, proof]) == 0 and capsys.readouterr().out.startswith("present in step-")
    assert CHECKER["main"](["0" * 64, proof]) == 1 and "RefusedError" in capsys.readouterr().err
    assert CHECKER["main"]([root]) == 2 and "usage" in capsys.readouterr().err
    assert main(["prove", output, "--url", "https://absent.example/"]) == 0
    assert "absent: url https://absent.example/" in capsys.readouterr().out
    assert main(["prove", output, "--domain", "www.example.org"]) == 2
    assert "give that" in capsys.readouterr().err
    assert main(["prove", output, "--url", "x", "--step", "7"]) == 2
    assert "no commitment of step 7" in capsys.readouterr().err
    assert main(["prove", str(tmp_path), "--url", "x"]) == 2
    assert "is not the output of a training run" in capsys.readouterr().err


def test_a_text_is_found_as_an_editor_of_another_system_saves_it() -> None:
    text = "First line.\nSecond line."
    as_saved = ["\ufeff" + text, text.replace("\n", "\r\n") + "\r\n", "\ufeff" + text + "\n"]
    for saved in as_saved:
        assert text_hash(text).hex() in text_subjects(saved)
        assert text_subjects(saved)[0] == text_hash(saved).hex(), "a clean text that is like that comes first"


@pytest.mark.parametrize("url", ["", " \n"])
def test_of_no_url_nothing_is_proved(world: World, url: str) -> None:
    with pytest.raises(RecipeError, match="expected the URL of a page"):
        make_proof(world.output, url=url)


def test_of_a_step_that_was_saved_twice_the_newest_attempt_is_proved(world: World, tmp_path: Path) -> None:
    output = Folder(str(tmp_path / "run"))
    shutil.copytree(world.output.url, output.url)
    for attempt in (2, 10):
        name = world.commitment.checkpoint.replace("attempt-1", f"attempt-{attempt}")
        later = replace(world.commitment, checkpoint=name)
        shutil.copytree(
            output.at(f"commitments/{world.commitment.checkpoint}"), output.at(f"commitments/{name}")
        )
        row = json.dumps({**asdict(later), "root": later.root}).encode()
        output.publish(f"commitments/{name}/commitment.json", row)
    proof = prove(output, "url", ["https://absent.example/"], world.commitment.step)
    assert proof.commitment.checkpoint.endswith("attempt-10")


def test_the_library_gives_the_same(world: World) -> None:
    assert sluice.commit(world.output.url).root == world.commitment.root
    proof = sluice.prove(world.output.url, url="https://absent.example/")
    assert (proof.present, proof.readings, proof.first_step) == (False, 0, None)
    assert verify(proof.root, proof.data).startswith("absent from step-")
    with pytest.raises(ValueError, match="2 of url, domain and text are given"):
        sluice.prove(world.output.url, url="x", domain="example.org")


def test_a_damaged_commitment_is_named(world: World, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(world.output.url, copied)
    (file,) = copied.glob("commitments/*/commitment.json")
    row = json.loads(file.read_text())
    file.write_text(json.dumps({**row, "num_leaves": 3}))
    with pytest.raises(RecipeError, match=r"commitment\.json is damaged"):
        prove(Folder(str(copied)), "url", ["x"])
    shutil.rmtree(copied / "commitments")
    with pytest.raises(RecipeError, match="has no commitment of its newest checkpoint"):
        prove(Folder(str(copied)), "url", ["x"])


@pytest.mark.parametrize("name", ["org", "co.uk", "192.0.2.1", "", "not a domain"])
def test_what_is_no_registered_domain_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="expected a registered domain"):
        domain_subject(name)


def test_a_proof_is_in_one_form_alone(world: World) -> None:
    proof = row_of(world.output, "url", "https://absent.example/")
    verify(world.commitment.root, file_of(proof))
    for data in (
        json.dumps(proof).encode(),
        canonical(proof),
        file_of(proof) + b"\n",
        b"{}",
        b"[]",
        b"\xff",
    ):
        with pytest.raises(RefusedError):
            verify(world.commitment.root, data)


def test_what_a_run_read_of_two_outputs_is_committed_whole_and_once_or_refused(
    small: SmallOut, tmp_path: Path
) -> None:
    outs = [tmp_path / "x", tmp_path / "y"]
    shutil.copytree(small.folder.url, outs[0])
    make_small_out(str(outs[1]), seed=1, tokenizer=small.tokenizer)
    data = [{"out": str(out), "prefix": f"{out.name}/"} for out in outs]
    trained = Trained(small=small, folder=tmp_path, changes={"data": data, "steps": 2})
    output = Folder(str(trained.run.output))
    trained.run.start()
    of_two = commit_run(output)
    read = traced_in(trained.run.output, [Folder(str(outs[1]))])
    url = next(subject for kind, subject in read if kind == "url")
    for given in (outs[:1], outs[1:], [outs[0], outs[0]]):
        with pytest.raises(RecipeError, match=r"has read [xy]/books, [xy]/web too.*give every output"):
            commit_run(output, [str(out) for out in given])
    assert commit_run(output, [str(out) for out in reversed(outs)]) == of_two

    # The run goes on from a copy of one output: both are recorded, and each reading counts once.
    for place, is_moved in (("copied", False), ("moved", True)):
        there = tmp_path / place
        shutil.copytree(outs[1], there)
        if is_moved:
            shutil.rmtree(outs[1])
            shutil.rmtree(tmp_path / "copied")
        changed = [data[0], {"out": str(there), "prefix": "y/"}]
        trained.run.start(data=changed, steps=6 if is_moved else 4)
        commitment = commit_run(output)
        readings = traced_in(trained.run.output, [Folder(str(outs[0])), Folder(str(there))])
        assert commitment == commit_run(output, [str(outs[0]), str(there)])
        assert commitment.num_leaves == len(readings)
        assert proved(output, commitment.root, "url", url) == readings["url", url]


def test_what_a_run_read_of_an_output_and_of_a_purged_copy_of_it_is_committed_by_the_prefix_of_each(
    small: SmallOut, tmp_path: Path
) -> None:
    outs = [tmp_path / "x", tmp_path / "y"]
    for out in outs:
        shutil.copytree(small.folder.url, out)
    gone = small.named["original"]
    purge(Folder(str(outs[0])), by_doc(gone))
    data = [{"out": str(out), "prefix": f"{out.name}/"} for out in outs]
    trained = Trained(small=small, folder=tmp_path, changes={"data": data})
    output = Folder(str(trained.run.output))
    trained.run.start()
    commitment = commit_run(output)
    readings: dict[str, list[int]] = defaultdict(list)
    # The rows of the batches, as the run recorded them: no order is inverted here.
    files = sorted(trained.run.output.glob("batches/*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    for out in outs:
        for held in read_table(Folder(str(out)), "documents").to_pylist():
            if held["shard"] is not None and (out.name == "y" or held["doc_id"] != gone.doc_id):
                readings[held["clean_hash"].hex()] += [
                    row["step"]
                    for row in rows
                    if (row["source"], row["shard"]) == (f"{out.name}/{held['source']}", held["shard"])
                    and row["start"] < held["start"] + held["num_tokens"]
                    and held["start"] < row["start"] + row["num_tokens"]
                ]
    assert readings[text_hash(gone.text).hex()] and len(readings) > 20
    for subject, steps in readings.items():
        expected = Values(len(steps), min(steps), max(steps)) if steps else None
        assert proved(output, commitment.root, "text", subject) == expected
