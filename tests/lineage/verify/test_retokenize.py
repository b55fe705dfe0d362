"""`verify --retokenize`: a fault of the tokens themselves is found and named, whatever the checksums say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lineage.ids import text_hash
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from lineage.verify.problems import Problem
from lineage.verify.retokenize import Retokenize, is_sampled
from tests.support.outputs.planted_tokens import FAULTS, PlantedOut, make_planted_out
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.hooks import verify_hooks
from tests.support.outputs.small_out.output import SmallOut, change_where, default_tokenizer, make_small_out


def retokenize(share: float = 1.0) -> Retokenize:
    tokenizer = default_tokenizer()
    return Retokenize(
        encode_batch=tokenizer.encode_batch, decode=tokenizer.decode, keeps=tokenizer.keeps, share=share
    )


def named(problems: Sequence[Problem], doc_id: bytes) -> list[Problem]:
    return [problem for problem in problems if doc_id.hex() in f"{problem.where} {problem.message}"]


def check_that_all_are_named(planted: PlantedOut) -> None:
    found = verify(planted.out.folder, verify_hooks(), retokenize=retokenize())
    for doc_id, kind in planted.faults.items():
        problems = named(found.problems, doc_id)
        assert "retokenize.tokens" in {problem.check for problem in problems}, kind
        (of_text,) = [problem for problem in problems if problem.check == "retokenize.tokens"]
        assert re.fullmatch(r"shards/(web|books)/\d{5}\.bin at \d+", of_text.where)
        assert re.search(r"position \d+", of_text.message)
    ids = {doc_id.hex() for doc_id in planted.faults}
    for problem in found.problems:  # and no document without a fault is
        assert set(re.findall(r"[0-9a-f]{32}", f"{problem.where} {problem.message}")) <= ids
    assert set(planted.faults.values()) == set(FAULTS)


def test_planted_faults_are_all_named_with_document_shard_start_and_position(tmp_path: Path) -> None:
    check_that_all_are_named(make_planted_out(str(tmp_path / "out"), 38))


@pytest.mark.slow
def test_two_hundred_planted_faults_are_all_named(tmp_path: Path) -> None:
    check_that_all_are_named(make_planted_out(str(tmp_path / "out"), 200))


def test_the_first_position_that_differs_is_the_one_that_is_named(tmp_path: Path) -> None:
    def plant(doc_id: bytes, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        changed = tokens.copy()
        changed[7] = 5
        return changed

    made = make_small_out(str(tmp_path / "out"), plant=plant)
    found = verify(made.folder, verify_hooks(), retokenize=retokenize()).problems
    assert {problem.check for problem in found} == {"retokenize.tokens"}
    assert len(found) == sum(shard.num_documents for shard in made.index.shards)
    assert all("at position 7 the text gives token" in problem.message for problem in found)
    assert all(problem.message.endswith("the shard holds 5") for problem in found)


def test_a_whole_output_holds_and_every_kept_text_was_encoded(template: SmallOut) -> None:
    done: list[int] = []
    found = verify(template.folder, verify_hooks(), retokenize=replace(retokenize(), progress=done.append))
    assert found.problems == found.notes == ()
    kept = sum(shard.num_documents for shard in template.index.shards)
    assert found.num_retokenized == sum(done) == kept > 20
    assert verify(template.folder, verify_hooks()).num_retokenized == 0


def test_a_share_is_the_same_documents_each_time(tmp_path: Path) -> None:
    planted = make_planted_out(str(tmp_path / "out"), 38)
    for share in (0.2, 0.5):
        found = verify(planted.out.folder, verify_hooks(), retokenize=retokenize(share))
        hit = {problem.message[9:41] for problem in found.problems if problem.check == "retokenize.tokens"}
        assert hit == {doc_id.hex() for doc_id in planted.faults if is_sampled(doc_id, share)}
        assert 0 < len(hit) < 38 and found.num_retokenized < 70


def test_a_share_of_many_ids_is_about_that_share_and_grows_with_it() -> None:
    ids = [text_hash(str(number)) for number in range(5000)]
    few, more = ({doc_id for doc_id in ids if is_sampled(doc_id, share)} for share in (0.1, 0.3))
    assert few < more and 400 < len(few) < 600 and 1350 < len(more) < 1650
    assert all(is_sampled(doc_id, 1.0) for doc_id in ids)


def test_purged_documents_are_passed_over(out: Folder, template: SmallOut) -> None:
    purge(out, by_doc(*[record for record in template.records if record.status == "kept"][:3]))
    found = verify(out, verify_hooks(), retokenize=retokenize())
    assert found.problems == ()
    assert 0 < found.num_retokenized < sum(shard.num_documents for shard in template.index.shards)


def test_tokens_of_a_text_that_was_changed_afterwards_are_named(tmp_path: Path, template: SmallOut) -> None:
    kept = next(
        record for record in template.records if record.status == "kept" and record.cluster_id is None
    )
    made = make_small_out(
        str(tmp_path / "out"), tamper=change_where("parts", kept.doc_id, "text", "Another text.")
    )
    found = verify(made.folder, verify_hooks(), retokenize=retokenize()).problems
    assert {problem.check for problem in named(found, kept.doc_id)} == {
        "documents.clean_hash",
        "retokenize.tokens",
    }


def test_a_tokenizer_that_loses_text_is_named_where_it_says_that_it_keeps_it(template: SmallOut) -> None:
    lossy = replace(retokenize(), decode=lambda tokens: default_tokenizer().decode(tokens)[:-1])
    found = verify(template.folder, verify_hooks(), retokenize=lossy)
    assert {problem.check for problem in found.problems} == {"retokenize.text"}
    assert len(found.problems) == found.num_retokenized
    honest = verify(template.folder, verify_hooks(), retokenize=replace(lossy, keeps=lambda text: False))
    assert honest.problems == ()
    (note,) = honest.notes
    assert note.check == "retokenize.lossy" and f"of {found.num_retokenized} documents" in note.message


def test_damaged_facts_leave_nothing_to_compare_with(out: Folder) -> None:
    path = Path(out.at("checksums.json"))
    path.write_bytes(path.read_bytes()[:-9])
    found = verify(out, verify_hooks(), retokenize=retokenize())
    assert found.num_retokenized == 0 and found.problems
