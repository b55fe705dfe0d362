"""A run in S3 whose lease another has taken publishes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lineage.storage import objects
from lineage.storage.folder import Folder
from lineage.storage.lock import LEASE_FILE, HeldError, Hold, hold
from lineage.verify.output import verify
from pipeline import process
from pipeline.inspect.hooks import verify_hooks
from pipeline.phases import publish, record
from pipeline.plan import PLAN
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import recipe, run, s3_server


class Thief:
    """Takes the lease of the run under way once it has done an act. The run learns of it as it does when it
    wakes: its next renewal fails."""

    def __init__(self, out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        self._out, self._held = out, Hold()
        monkeypatch.setattr(process, "hold", self._holding)

    @contextmanager
    def _holding(self, folder: Folder, what: str) -> Iterator[Hold]:
        with hold(folder, what) as self._held:
            yield self._held

    def after(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The `act`, and then the theft."""

        def acting(*given: Any, **named: Any) -> Any:
            result = act(*given, **named)
            url = self._out.at(LEASE_FILE)
            while (lease := objects.get(url)) and not objects.put_over(url, b'{"what": "thief"}', lease.etag):
                pass
            with pytest.raises(HeldError):
                self._held.renew()
            self.left = self._names()
            return result

        return acting

    def check_nothing_was_published_since(self) -> None:
        """And go, so that the next call may hold the output."""
        assert self._names() == self.left
        self._out.remove(LEASE_FILE)

    def _names(self) -> list[tuple[str, bytes]]:
        return [(name, self._out.read(name)) for name in self._out.names()]


def test_a_run_whose_lease_was_taken_publishes_nothing_more_and_the_same_call_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_crawl(tmp_path)
    posts = (str(tmp_path / "posts-0.jsonl"),)  # one file: each object costs a server in Python its time
    plain = recipe("s3://bucket/out", {"docs": posts}, run={"keep_text": True})
    with s3_server("bucket"):
        out = Folder("s3://bucket/out")
        acts = {  # and what is not done after it
            (record, "_in_process"): "lineage/purges/_delta_log/00000000000000000000.json",
            (process, "summarise"): "texts/texts.json",
            (process, "render_output"): "checksums.json",
            (publish, "cover_output"): "index.json",
            (publish, "publish_index"): None,
        }
        for (module, name), absent in acts.items():
            with monkeypatch.context() as patched:
                thief = Thief(out, patched)
                patched.setattr(module, name, thief.after(getattr(module, name)))
                with pytest.raises(HeldError, match="nothing more is published"):
                    run(tmp_path, plain)
            thief.check_nothing_was_published_since()
            assert out.exists(PLAN) and not (absent and out.exists(absent)), name
        assert run(tmp_path, plain)["num_kept"] > 0
        assert not out.names("work") and not verify(out, verify_hooks(out)).problems
