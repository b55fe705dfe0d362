"""The commits that the revisions of hf:// inputs name: a branch goes on, and a run must not.

A run is planned with the commit that a revision names then, and records it. A later call of the run reads that
commit, whatever the revision names by then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lineage.storage.errors import StorageError
from lineage.storage.folder import filesystem


class Revisions:
    """`commits` are those of revisions by the part of a URL that names them, as in
    hf://datasets/OWNER/NAME@main: what an earlier call recorded, and what was looked up since."""

    def __init__(self, commits: Mapping[str, str] | None = None) -> None:
        self._recorded = dict(commits or {})
        self.commits: dict[str, str] = {}

    def pinned(self, url: str) -> str:
        """`url` with the commit in place of its revision; a bucket has none, and its URL stays. OSError says in a
        sentence what the Hub refuses."""
        hub = filesystem(url)
        from lineage.storage.hub_client import is_pinned, revision_of

        revision = revision_of(url)
        commit = self.commits.get(revision)
        if commit is None and not (commit := self._commit(hub, revision)):
            return url
        if not is_pinned(revision):
            self.commits[revision] = commit
        kind_and_name = revision.removeprefix("hf://").partition("@")[0]
        return f"hf://{kind_and_name}@{commit}{url.rstrip('/')[len(revision) :]}"

    def _commit(self, hub: Any, revision: str) -> str | None:
        recorded = self._recorded.get(revision)
        asked = revision if recorded is None else f"{revision.partition('@')[0]}@{recorded}"
        try:
            commit: str | None = hub.commit_of(asked)
        except FileNotFoundError as error:
            # A StorageError, whose sentence is shown: what is not found may be named wrongly in other ways.
            if recorded is None:
                raise StorageError(str(error)) from error
            raise StorageError(
                f"{revision} named commit {recorded} when this run was planned, which the Hub has no more: the"
                " repository's history was rewritten. Restore it, or run into a new output"
            ) from error
        return commit
