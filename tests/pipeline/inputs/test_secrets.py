"""Credentials of inputs reach the server and nothing else: no file of an output, no message, no log."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline import process
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.inputs.http_file import http_facts, open_http
from pipeline.inputs.retries import Retries
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load
from tests.support.outputs.byte_search import everything, of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, recipe, summary_of, write_recipe
from tests.support.stores.loopback import Handler, serving

USER, PASSWORD = "harbourmaster", "s3cr3t-passw0rd"
FAST = Retries(attempts=1, backoff_seconds=0.01)


@dataclass
class Vault:
    """A server that gives a file to whoever knows its password, or signs with the signature of the day."""

    files: dict[str, bytes] = field(default_factory=dict)
    signature: str = "sig-of-monday-9f8e7d"
    closed: set[str] = field(default_factory=set)
    busy: bool = False
    url: str = ""

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def query(self) -> str:
        return f"X-Amz-Credential=AKIAHARBOUR%2Fs3&X-Amz-Date=now-{self.signature}&X-Amz-Signature={self.signature}"

    def secrets(self) -> list[bytes]:
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode())
        return [USER.encode(), PASSWORD.encode(), self.signature.encode(), b"AKIAHARBOUR", basic, b"sig-of-"]


class VaultHandler(Handler):
    vault: Vault

    def answer(self) -> None:
        vault, parts = self.vault, urlsplit(self.path)
        data, status = vault.files.get(parts.path), 200
        if parts.path.startswith("/signed/"):
            # As S3 does: what was signed is a GET.
            known = parse_qs(parts.query).get("X-Amz-Signature") == [vault.signature] and self.sends_body
        else:
            told = self.headers.get("Authorization", "").removeprefix("Basic ")
            known = base64.b64decode(told) == f"{USER}:{PASSWORD}".encode()
        if vault.busy:
            status = 503
        elif not known or (
            parts.path in vault.closed and self.headers.get("Range") != "bytes=0-0" and self.sends_body
        ):
            status = 403
        elif data is None:
            status = 404
        start, end, total = 0, len(data or b""), len(data or b"")
        wanted = self.headers.get("Range")
        if status == 200 and wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(end, int(last) + 1) if last else end, 206
        content = (data or b"")[start:end] if status < 300 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
        self.send_header("ETag", '"one"')
        self.end_headers()
        if self.sends_body:
            self.wfile.write(content)


@pytest.fixture
def vault() -> Iterator[Vault]:
    served = Vault()
    rng = random.Random(3)
    for path in ("/plain/a.jsonl.gz", "/signed/b.jsonl.gz", "/signed/c.jsonl.gz"):
        rows = [{"id": str(n), "text": write_article("en", rng, 10).text} for n in range(4)]
        served.files[path] = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    with serving(VaultHandler, vault=served) as served.url:
        yield served


def plain_recipe(vault: Vault, out: Path, *inputs: str) -> dict[str, Any]:
    lists = {
        "block_words": [f"http://{USER}:{PASSWORD}@{vault.host}/plain/words.txt?token={vault.signature}"]
    }
    vault.files["/plain/words.txt"] = b"unspeakable\n"
    return recipe(str(out), {"told": inputs}, url=lists, quality={"rules": ["gopher_quality"]})


def inputs_of(vault: Vault) -> list[str]:
    return [
        f"http://{USER}:{PASSWORD}@{vault.host}/plain/a.jsonl.gz",
        *(f"{vault.url}/signed/{name}.jsonl.gz?{vault.query()}&part=1" for name in "bc"),
    ]


def assert_untold(vault: Vault, *told: bytes) -> None:
    found = [
        content[max(content.find(secret) - 80, 0) :][:200]
        for content in told
        for secret in vault.secrets()
        if secret in content
    ]
    assert not found


def test_a_run_uses_credentials_and_leaves_them_nowhere_and_goes_on_with_the_next_signature(
    vault: Vault, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = Folder(str(tmp_path / "out"))
    caplog.set_level(logging.DEBUG)
    vault.closed = {"/signed/c.jsonl.gz"}
    path = write_recipe(tmp_path / "recipe.toml", plain_recipe(vault, tmp_path / "out", *inputs_of(vault)))
    assert main(["run", str(path)]) == 1
    told = capfd.readouterr()
    assert "/signed/c.jsonl.gz?part=1: the server answers 403" in told.err
    assert "credentials of" in told.err and "recorded nowhere" in told.err
    assert_untold(
        vault, told.err.encode(), told.out.encode(), caplog.text.encode(), *everything(of_folder(out))
    )
    # The next day the same files are signed anew: it is the same run.
    vault.closed, vault.signature = set(), "sig-of-tuesday-1a2b3c"
    path = write_recipe(tmp_path / "recipe.toml", plain_recipe(vault, tmp_path / "out", *inputs_of(vault)))
    assert main(["run", str(path)]) == 0
    vault.signature = "sig-of-wednesday-4d5e6f"
    path = write_recipe(tmp_path / "recipe.toml", plain_recipe(vault, tmp_path / "out", *inputs_of(vault)))
    assert main(["run", str(path)]) == 0
    told = capfd.readouterr()
    assert "nothing to do" in told.err
    assert_untold(
        vault, told.err.encode(), told.out.encode(), caplog.text.encode(), *everything(of_folder(out))
    )
    assert sorted(row[0] for row in query(out, "SELECT file FROM inputs").rows) == [
        f"{vault.url}/plain/a.jsonl.gz",
        f"{vault.url}/signed/b.jsonl.gz?part=1",
        f"{vault.url}/signed/c.jsonl.gz?part=1",
    ]
    assert summary_of(out.url)["num_documents"] == 12
    assert main(["verify", out.url]) == 0 and main(["report", out.url]) == 0
    # Another part is another input, whoever signed it.
    other = [entry.replace("part=1", "part=2") for entry in inputs_of(vault)]
    path = write_recipe(tmp_path / "recipe.toml", plain_recipe(vault, tmp_path / "out", *other))
    capfd.readouterr()
    assert main(["run", str(path)]) == 2
    told = capfd.readouterr()
    assert "part=2' now and was" in told.err
    assert_untold(vault, told.err.encode())


def test_credentials_come_from_the_environment_and_the_recipe_keeps_no_name_of_them(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_ray: None
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_HARBOUR", f"{USER}:{PASSWORD}")
    monkeypatch.setenv("SLUICE_SECRET_SIGNED", vault.query())
    vault.files["/plain/words.txt"] = b"unspeakable\n"
    plain = recipe(
        str(tmp_path / "out"),
        {
            "told": (
                f"http://${{SLUICE_SECRET_HARBOUR}}@{vault.host}/plain/a.jsonl.gz",
                f"{vault.url}/signed/b.jsonl.gz?${{SLUICE_SECRET_SIGNED}}",
            )
        },
        url={"block_words": [f"http://${{SLUICE_SECRET_HARBOUR}}@{vault.host}/plain/words.txt"]},
        ray=ON_RAY,
    )
    process.run(load(write_recipe(tmp_path / "recipe.toml", plain)), ProgressReporter(quiet=True))
    out = Folder(str(tmp_path / "out"))
    assert_untold(vault, *everything(of_folder(out)))
    assert summary_of(out.url)["num_documents"] == 8
    monkeypatch.delenv("SLUICE_SECRET_SIGNED")
    with pytest.raises(RecipeError, match="the variable SLUICE_SECRET_SIGNED is not set") as caught:
        process.run(load(tmp_path / "recipe.toml"), ProgressReporter(quiet=True))
    assert_untold(vault, str(caught.value).encode())


def test_a_list_of_presigned_urls_is_read_and_named_without_their_signatures(
    vault: Vault, tmp_path: Path
) -> None:
    from pipeline.inputs.files import list_inputs, open_input
    from pipeline.recipe.tables import SourceTable

    lines = [f"{vault.url}/signed/{name}.jsonl.gz?{vault.query()}" for name in "bc"]
    vault.files["/signed/all.paths.gz"] = gzip.compress("\n".join(lines).encode())
    listed = f"{vault.url}/signed/all.paths.gz?{vault.query()}"
    found = list_inputs(SourceTable(name="told", inputs=(listed,)))
    assert [(entry.name, entry.url) for entry in found] == [
        (f"signed/{name}.jsonl.gz", f"{vault.url}/signed/{name}.jsonl.gz") for name in "bc"
    ]
    assert_untold(vault, repr(found).encode())
    assert open_input(found[0]).read() == vault.files["/signed/b.jsonl.gz"]


@pytest.mark.parametrize("fault", ["busy", "wrong", "missing", "away", "malformed"])
def test_no_error_of_a_web_server_tells_credentials(
    vault: Vault, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"http://{USER}:{PASSWORD}@{vault.host}/plain/a.jsonl.gz?{vault.query()}&other=${{not-a-name}}"
    if fault == "busy":
        vault.busy = True
    elif fault == "wrong":
        url = url.replace(":s3cr3t", ":wrong-s3cr3t")
    elif fault == "missing":
        url = url.replace("/a.jsonl", "/b.jsonl")
    elif fault == "away":
        url = url.replace(vault.host, "127.0.0.1:9")
    else:
        url = url.replace(vault.host, "[127.0.0.1")
    for ask in (lambda: http_facts(url, FAST), lambda: open_http(url, FAST)):
        with pytest.raises(OSError) as caught:
            ask()
        # With the causes: Ray writes them down where a task raises.
        assert_untold(vault, "".join(traceback.format_exception(caught.value)).encode())
    assert_untold(vault, caplog.text.encode())


def test_keys_in_an_s3_url_are_refused_by_name_of_the_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = recipe(str(tmp_path / "out"), {"told": ("s3://AKIAHARBOUR:s3cr3t-key@bucket/a.warc.gz",)})
    assert main(["run", str(write_recipe(tmp_path / "recipe.toml", plain))]) == 2
    told = capsys.readouterr().err
    assert "AWS_ACCESS_KEY_ID" in told and "AKIAHARBOUR" not in told and "s3cr3t-key" not in told


@pytest.mark.parametrize(
    "override",
    ["run.seed=https://u:s3cr3t-key@h.example/" + "a" * 100, "run.sed=https://h.example/?token=s3cr3t-key"],
)
def test_a_wrong_value_is_shown_without_credentials(
    tmp_path: Path, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = recipe(str(tmp_path / "out"), {"told": ("/nowhere/*.gz",)})
    assert main(["run", str(write_recipe(tmp_path / "recipe.toml", plain)), "--set", override]) == 2
    told = capsys.readouterr().err
    assert "h.example" in told and "s3cr3t" not in told
