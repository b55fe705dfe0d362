"""What a store that cannot be used says: one sentence that names the object, the reason and what to do; no
traceback, no secret; and never the answer that a file is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from lineage.storage import clients as storage
from lineage.storage.folder import Folder, StorageError, without_secrets
from lineage.storage.s3_client import S3Client
from pipeline.cli.main import main
from tests.support.stores.loopback import Handler, serving

SECRET = "wJalrXUtnFEMIsecret"
ANSWERS = {
    "forbidden": (403, "AccessDenied", "Access Denied"),
    "wrong keys": (403, "SignatureDoesNotMatch", "The request signature we calculated does not match"),
    "no bucket": (404, "NoSuchBucket", "The specified bucket does not exist"),
    "broken": (500, "InternalError", "We encountered an internal error"),
    "busy": (503, "SlowDown", "Please reduce your request rate"),
}
SAYS = {
    "refused": "does not answer", "no such host": "does not answer", "forbidden": "refuses", "wrong keys": "refuses",
    "no bucket": "no such bucket", "broken": "fails", "busy": "fails", "no profile": "there are no keys",
}  # fmt: skip


@contextlib.contextmanager
def answering(status: int, code: str, message: str) -> Iterator[str]:
    """The URL of a server with one answer for everything."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()

    class OneAnswer(Handler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.sends_body:
                self.wfile.write(body)

    with serving(OneAnswer) as url:
        yield url


@pytest.fixture
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store with the fault that the test names, at the usual variables, and clients that give up early."""
    name = str(request.param)
    settings = {
        "AWS_ACCESS_KEY_ID": "AKIAKEY",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    if name == "no profile":
        settings = {"AWS_PROFILE": "nobody-here", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    if name == "no such host":
        settings["AWS_ENDPOINT_URL"] = "http://store.invalid"
    monkeypatch.setattr(S3Client, "retries", 1)
    with contextlib.ExitStack() as stack:
        if name in ANSWERS:
            settings["AWS_ENDPOINT_URL"] = stack.enter_context(answering(*ANSWERS[name]))
        for variable, value in settings.items():
            monkeypatch.setenv(variable, value)
        storage._filesystem.cache_clear()
        yield name
        storage._filesystem.cache_clear()


@pytest.mark.parametrize("fault", SAYS, indirect=True)
def test_a_store_that_fails_never_says_that_a_file_is_not_there(fault: str) -> None:
    folder = Folder("s3://bucket/out")
    if fault == "no bucket":
        assert not folder.exists("index.json")
    else:
        for act in (folder.exists, folder.remove, folder.size, folder.read, folder.names):
            with pytest.raises(StorageError) as raised:
                act("index.json")
            assert not isinstance(raised.value, FileNotFoundError)
            assert str(raised.value).count("s3://bucket/out") <= 1
    with pytest.raises(StorageError, match=SAYS[fault]):
        folder.publish("index.json", b"{}")


@pytest.mark.parametrize("fault", SAYS, indirect=True)
@pytest.mark.parametrize("command", ["verify", "report", "purge", "trace", "train", "run, output", "run, input",
                                     "explain", "scan"])  # fmt: skip
def test_a_command_says_it_in_one_line(
    fault: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crawl, train = tmp_path / "crawl.toml", tmp_path / "train.toml"
    (tmp_path / "posts.jsonl").write_text('{"text": "One line."}\n')
    source = "s3://bucket/in/*.jsonl" if command == "run, input" else str(tmp_path / "posts.jsonl")
    out = "s3://bucket/out" if command == "run, output" else str(tmp_path / "out")
    crawl.write_text(
        tomli_w.dumps(
            {
                "run": {"name": "r", "output": out},
                "source": [{"name": "web", "inputs": [source]}],
                "language": {"keep": ["en"]},
                "parse": {"extractor": "resiliparse"},
            }
        )
    )
    train.write_text(
        tomli_w.dumps(
            {
                "run": {"name": "t"},
                "train": {
                    "data": "s3://bucket/out",
                    "output": str(tmp_path / "t"),
                    "model": "debug",
                    "seq_len": 64,
                    "global_batch": 2,
                    "steps": 2,
                },
            }
        )
    )
    calls = {
        "verify": ["verify", "s3://bucket/out"],
        "report": ["report", "s3://bucket/out"],
        "purge": ["purge", "s3://bucket/out", "--doc", "0" * 32, "--by", "me", "--reason", "r"],
        "trace": ["trace", "s3://bucket/out", "--doc", "0" * 32],
        "train": ["train", str(train)],
        "run, output": ["run", str(crawl)],
        "run, input": ["run", str(crawl)],
        "explain": ["explain", str(crawl), "--warc", "s3://bucket/in/a.warc.gz", "--offset", "0"],
        "scan": [
            "scan",
            "s3://bucket/out",
            "--against",
            str(tmp_path / "posts.jsonl"),
            "--to",
            str(tmp_path / "s"),
        ],
    }
    code = main(calls[command])
    told = capsys.readouterr().err
    assert code in (1, 2)
    *before, error = told.splitlines()
    assert "s3://bucket/" in error and len(before) <= command.startswith(("run", "train")), (
        told
    )  # what they check
    assert "Traceback" not in told and SECRET not in told and "X-Amz" not in told
    if fault != "no bucket" or not command.startswith(("run, input", "explain")):
        assert SAYS[fault] in told


def test_a_url_is_shown_without_its_secrets() -> None:
    assert without_secrets("https://user:pass@host:9000/a/b?X-Amz-Signature=5") == "https://host:9000/a/b"
    assert without_secrets("s3://bucket/a") == "s3://bucket/a"
    assert without_secrets("/a/b") == "/a/b"
