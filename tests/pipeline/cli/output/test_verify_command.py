"""`sluice verify --retokenize`: what it prints and how it exits; another tokenizer than the recorded one is
refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models

from pipeline.cli.main import main
from stages.tokens.tokenizer import load_tokenizer
from tests.support.outputs.planted_tokens import make_planted_out
from tests.support.outputs.small_out import hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


@pytest.fixture(autouse=True)
def plain_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.inspect.hooks.stale_report", hooks.stale_report)


def test_it_counts_the_texts_that_were_encoded_again(
    small: SmallOut, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = sum(shard.num_documents for shard in small.index.shards)
    assert main(["verify", small.folder.url, "--retokenize"]) == 0
    printed = capsys.readouterr()
    assert f"{kept:,} texts encoded again" in printed.out
    assert "Each document ends with <|endoftext|>" in " ".join(printed.err.split())
    assert main(["verify", small.folder.url, "--retokenize", "0.4", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["num_retokenized"] < kept
    assert main(["verify", small.folder.url]) == 0
    assert "encoded again" not in capsys.readouterr().out


def test_faults_are_exit_1_with_document_shard_start_and_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = make_planted_out(str(tmp_path / "out"), 19)
    assert main(["verify", planted.out.folder.url, "--retokenize"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("retokenize.tokens")]
    assert len(lines) == 19
    for line in lines:
        assert re.search(
            r"shards/\w+/\d{5}\.bin at \d+: document [0-9a-f]{32}: its text gives .* position \d+", line
        )


def saved_with_id(folder: Path, end: int) -> str:
    """A tokenizer of words whose end of text has the given id."""
    tokenizer = HfTokenizer(
        models.WordLevel({"<unk>": 0, **{f"w{id_}": id_ for id_ in range(1, end)}}, "<unk>")
    )
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "words.json"))
    return str(folder / "words.json")


def test_another_tokenizer_is_refused(
    tmp_path: Path, small: SmallOut, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.tiktoken").write_bytes(load_tokenizer("cl100k_base").rank_bytes())
    call = ["verify", small.folder.url, "--retokenize", "--tokenizer"]
    for other in (str(tmp_path / "other.tiktoken"), saved_with_id(tmp_path, small.tokenizer.eot_id)):
        assert main([*call, other]) == 2
        refused = capsys.readouterr().err
        assert f"{other} is another tokenizer than the one that made these shards" in refused
        assert small.tokenizer.hash in refused and "--tokenizer where it lies" in refused
    assert main(["verify", small.folder.url, "--retokenize", "--tokenizer", str(tmp_path / "gone.json")]) == 2
    assert "gone.json' cannot be read" in capsys.readouterr().err
    assert main(["verify", small.folder.url, "--tokenizer", "cl100k_base"]) == 2
    assert "--tokenizer is for --retokenize" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "nan", "all"])
def test_a_share_that_is_none_is_refused(share: str, small: SmallOut) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["verify", small.folder.url, f"--retokenize={share}"])
    assert stopped.value.code == 2
