"""What the page keeps for the person who serves it, outside of every output: the basket, saved queries, who
looked at personal data, what was written for a purge and what `verify` found after it. It outlives the page;
an output stays closed.

$XDG_STATE_HOME/sluice/page/<output>/ (~/.local/state without it): basket.json, queries.json, unmasked.jsonl,
requests/, proofs/."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from lineage.ids import content_hash
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder

ItemKind = Literal["doc", "url", "host", "domain", "where"]
KINDS: Final[tuple[ItemKind, ...]] = get_args(ItemKind)
_MOST_ITEMS: Final = 100_000
_MOST_QUERIES: Final = 200
_MOST_CHARS: Final = 20_000
"""Of a URL or a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasketItem:
    """What is to be purged, by one of its names. `written` is how it stood where it was named, for a mail's
    lines to be found again: it makes no other item."""

    kind: ItemKind
    value: str
    written: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedQuery:
    """A SELECT and what somebody called it."""

    name: str
    sql: str


class Notes:
    """The notes on one output. Every method reads and writes the files, which other pages may change too."""

    def __init__(self, out: Folder, home: Path | None = None) -> None:
        where = home or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self._folder = where / "sluice" / "page" / content_hash(out.url.encode()).hex()[:16]

    @property
    def place(self) -> str:
        """Where they lie."""
        return str(self._folder)

    def basket(self) -> list[BasketItem]:
        """What lies in the basket, in the order in which it came."""
        return [BasketItem(**item) for item in self._read("basket.json")]

    def put(self, items: Sequence[BasketItem]) -> None:
        """Put these into the basket; what is there stays once. RecipeError where it cannot hold so many."""
        _check(items)
        with self._held():
            all_items = list(dict.fromkeys([*self.basket(), *items]))
            if len(all_items) > _MOST_ITEMS:
                raise RecipeError(
                    f"the basket holds up to {_MOST_ITEMS:,}: name more by a condition, a host or a domain"
                )
            self._write("basket.json", [asdict(item) for item in all_items])

    def take(self, items: Sequence[BasketItem]) -> None:
        """Take these out of the basket."""
        gone = set(items)
        with self._held():
            self._write("basket.json", [asdict(item) for item in self.basket() if item not in gone])

    def put_instead(self, item: BasketItem, other: BasketItem) -> None:
        """Put another in the place of an item, which keeps how it was written. RecipeError for one that is
        none."""
        _check([other])
        with self._held():
            items = [
                replace(other, written=known.written or known.value) if known == item else known
                for known in self.basket()
            ]
            self._write("basket.json", [asdict(known) for known in dict.fromkeys(items)])

    def queries(self) -> list[SavedQuery]:
        """The saved queries, by name."""
        return sorted((SavedQuery(**row) for row in self._read("queries.json")), key=lambda query: query.name)

    def save(self, query: SavedQuery) -> None:
        """Save a query; one of that name gives way. RecipeError for one without name or words, or one too
        many."""
        if not query.name.strip() or not query.sql.strip() or len(query.name) + len(query.sql) > _MOST_CHARS:
            raise RecipeError(f"expected a name and a SELECT, of up to {_MOST_CHARS:,} characters")
        with self._held():
            kept = [known for known in self.queries() if known.name != query.name]
            if len(kept) >= _MOST_QUERIES:
                raise RecipeError(f"{_MOST_QUERIES} queries are saved: remove one first")
            self._write("queries.json", [asdict(known) for known in [*kept, query]])

    def forget(self, name: str) -> None:
        """Remove a saved query."""
        with self._held():
            self._write("queries.json", [asdict(known) for known in self.queries() if known.name != name])

    def looked(self, by: str, doc_id: str) -> None:
        """Note that somebody asked for the personal data in a text, before it is shown. RecipeError without a
        name."""
        if not by.strip() or len(by) > 200:
            raise RecipeError("a name is needed: who looks at personal data is noted")
        row = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "by": by.strip(), "doc_id": doc_id}
        with self._held(), (self._folder / "unmasked.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_proof(self, purge_id: str, found: Any) -> None:
        """Keep what `verify` found after a purge, with the time."""
        with self._held():
            row = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "found": found}
            self._write(f"proofs/{content_hash(purge_id.encode()).hex()}.json", row)

    def proof(self, purge_id: str) -> Any:
        """What `verify` found after a purge, and when (`at`, `found`); None where it was not asked for from
        here."""
        return self._read(f"proofs/{content_hash(purge_id.encode()).hex()}.json") or None

    def keep_request(self, purge_id: str, request: Any) -> None:
        """Keep what somebody asked for, beside the purge that was made of it."""
        with self._held():
            self._write(f"requests/{content_hash(purge_id.encode()).hex()}.json", request)

    def request(self, purge_id: str) -> Any:
        """What was asked for; None where the purge was not made from here."""
        return self._read(f"requests/{content_hash(purge_id.encode()).hex()}.json") or None

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Nobody else writes meanwhile."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise RecipeError(
                f"{self._folder / name} is not what the page wrote ({error}): remove it"
            ) from error

    def _write(self, name: str, rows: Any) -> None:
        path = self._folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(rows, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)


def _check(items: Sequence[BasketItem]) -> None:
    for item in items:
        if item.kind not in KINDS or not item.value or len(item.value) > _MOST_CHARS:
            raise RecipeError(
                f"expected one of {', '.join(KINDS)} and its value, of up to {_MOST_CHARS:,} characters"
            )
