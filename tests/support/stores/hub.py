"""A Hugging Face Hub on loopback: repositories with commits, branches and tags, and buckets, by the web API that
huggingface_hub speaks, with faults on purpose."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.stores.loopback import Handler, serving

TOKEN = "hf_a_token_of_a_test"

Files = dict[str, bytes]


@dataclass
class Repository:
    """`commits` are its files by commit, `refs` the commits that names stand for."""

    is_private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], ref: str = "main") -> str:
        """Make a branch or tag name a new commit with these files and no others."""
        told = repr((sorted(files.items()), len(self.commits))).encode()
        sha = hashlib.sha1(told).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha

    def files(self, revision: str) -> tuple[str, Files] | None:
        sha = self.refs.get(revision, revision)
        return (sha, self.commits[sha]) if sha in self.commits else None


@dataclass
class Hub:
    """What there is, by "datasets/OWNER/NAME", "models/OWNER/NAME" and "OWNER/NAME" of a bucket; how many requests
    there were of a kind. `cut` is how many of the next answers with a file's bytes break off in the middle, `busy`
    how many are a 503."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    buckets: dict[str, Files] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    busy: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def dataset(self, name: str, files: Mapping[str, bytes], *, is_private: bool = False) -> Repository:
        made = self.repositories[f"datasets/{name}"] = Repository(is_private=is_private)
        made.commit(files)
        return made


class _HubHandler(Handler):
    hub: Hub

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        path, self.query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[0] == "api" and parts[1] == "buckets":
            self._bucket_api("/".join(parts[2:4]), parts[4:])
        elif parts[0] == "api" and parts[1] == "validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif parts[0] == "api":
            self._repository_api(parts[1], "/".join(parts[2:4]), parts[4:])
        elif parts[0] == "buckets":
            self._file(self.hub.buckets.get("/".join(parts[1:3]), {}), "/".join(parts[4:]))
        else:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            self._resolve(kind, "/".join(parts[:2]), parts[2:])

    def _count(self, kind: str) -> None:
        with self.hub.lock:
            self.hub.counts[kind] += 1

    def _repository(self, kind: str, name: str) -> Repository | None:
        found = self.hub.repositories.get(f"{kind}/{name}")
        may = found is not None and (
            not found.is_private or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        )
        if not may:
            # The Hub does not say whether there is one that is private.
            self._refuse(401, "RepoNotFound")
        return found if may else None

    def _repository_api(self, kind: str, name: str, rest: list[str]) -> None:
        repository = self._repository(kind, name)
        if repository is None:
            return
        what = rest[0] if rest else "revision"
        self._count(what)
        if what == "commit":
            self._commit(repository, kind, name, rest[1])
            return
        if what == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(self.body)["files"]
            ]
            self._json({"files": files})
            return
        found = repository.files(rest[1] if len(rest) > 1 else "main")
        if found is None:
            self._refuse(404, "RevisionNotFound")
            return
        sha, files = found
        if what == "revision":
            self._json({
                "id": name, "_id": "0", "sha": sha, "private": repository.is_private, "gated": False,
                "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                "siblings": [{"rfilename": each} for each in sorted(files)],
            })  # fmt: skip
        elif what == "tree":
            entries = _tree(
                files, "/".join(rest[2:]), self.query.get("recursive", ["false"])[0].lower() == "true"
            )
            if entries:
                self._json([_as_repo_entry(each, files) for each in entries])
            else:
                self._refuse(404, "EntryNotFound")
        else:
            asked = self._asked_paths()
            self._json(
                [_as_repo_entry(each, files) for each in asked if _tree(files, each, False) or each in files]
            )

    def _commit(self, repository: Repository, kind: str, name: str, ref: str) -> None:
        files = dict(repository.commits[repository.refs[ref]])
        for line in self.body.splitlines():
            told = json.loads(line)
            if told["key"] == "file":
                files[told["value"]["path"]] = base64.b64decode(told["value"]["content"])
            elif told["key"] == "deletedFile":
                files.pop(told["value"]["path"])
        with self.hub.lock:
            sha = repository.commit(files, ref)
        self._json(
            {"commitUrl": f"{self.hub.url}/{kind}/{name}/commit/{sha}", "commitOid": sha, "success": True}
        )

    def _bucket_api(self, name: str, rest: list[str]) -> None:
        files = self.hub.buckets.get(name)
        if files is None:
            self._refuse(404, "RepoNotFound")
        elif not rest:
            self._json({
                "id": name, "private": False, "createdAt": "2026-01-01T00:00:00.000Z", "size": 0,
                "totalFiles": len(files),
            })  # fmt: skip
        elif rest[0] == "tree":
            recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
            entries = _tree(files, "/".join(rest[1:]), recursive)
            if recursive:
                entries = [each for each in entries if each in files]
            self._json([_as_bucket_entry(each, files) for each in entries])
        else:
            asked = self._asked_paths()
            self._json([_as_bucket_entry(each, files) for each in asked if each in files])

    def _asked_paths(self) -> list[str]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            return list(json.loads(self.body)["paths"])
        return parse_qs(self.body.decode())["paths"]

    def _resolve(self, kind: str, name: str, rest: list[str]) -> None:
        repository = self._repository(kind, name)
        if repository is None:
            return
        found = repository.files(rest[1])
        if found is None:
            self._refuse(404, "RevisionNotFound")
            return
        self._file(found[1], "/".join(rest[2:]))

    def _file(self, files: Files, name: str) -> None:
        if name not in files:
            self._refuse(404, "EntryNotFound")
            return
        data = files[name]
        first, last = 0, len(data) - 1
        if asked := self.headers.get("Range"):
            low, _, high = asked.removeprefix("bytes=").partition("-")
            first, last = int(low), min(int(high), last) if high else last
        body = data[first : last + 1]
        with self.hub.lock:
            self.hub.counts["file"] += self.sends_body
            is_busy = self.sends_body and self.hub.busy > 0
            is_cut = self.sends_body and self.hub.cut > 0 and not is_busy
            self.hub.busy -= is_busy
            self.hub.cut -= is_cut
        if is_busy:
            self._refuse(503, "")
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if is_cut:
            body, self.close_connection = body[: len(body) // 2], True
        if self.sends_body:
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.sends_body:
            self.wfile.write(data)


def _tree(files: Files, under: str, recursive: bool) -> list[str]:
    """The files and folders below a folder: all, or those right below it."""
    prefix = f"{under}/" if under else ""
    below = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
    found = set()
    for name in below:
        parts = name.split("/")
        depths = range(1, len(parts) + 1) if recursive else [1]
        found |= {prefix + "/".join(parts[:depth]) for depth in depths}
    return sorted(found)


def _as_repo_entry(name: str, files: Files) -> dict[str, Any]:
    if name not in files:
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    return {
        "type": "file",
        "oid": hashlib.sha1(files[name]).hexdigest(),
        "size": len(files[name]),
        "path": name,
    }


def _as_bucket_entry(name: str, files: Files) -> dict[str, Any]:
    if name not in files:
        return {"type": "directory", "path": name, "uploadedAt": "2026-01-01T00:00:00.000Z"}
    return {
        "type": "file",
        "path": name,
        "size": len(files[name]),
        "xetHash": hashlib.sha256(files[name]).hexdigest(),
        "mtime": "2026-01-01T00:00:00.000Z",
    }


@contextmanager
def hub_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub that HF_ENDPOINT names until the block ends; no token is set."""
    hub = Hub()
    with serving(_HubHandler, hub=hub) as url:
        hub.url = url
        monkeypatch.setenv("HF_ENDPOINT", url)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield hub
