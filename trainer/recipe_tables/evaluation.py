"""The table of what a run is evaluated on while it trains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import RecipeError, key

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTable:
    """One `[[train.eval]]`: texts, or questions with choices, that the model is scored on."""

    name: str = key(help="what its scores are called: letters, digits, -, _ and .")
    files: tuple[str, ...] = key(
        is_path=True, help="JSONL or Parquet files of texts or of questions; their fields say which"
    )
    kind: Literal["auto", "text", "choices"] = key("auto", help="what the files hold; auto: by their fields")
    shots: int = key(0, at_least=0, help="solved questions before each question")
    shots_from: str | None = key(
        None, is_path=True, help="file whose first questions these are; not given: the first others of files"
    )
    every: int = key(0, at_least=0, help="steps between evaluations; 0: only at the end")
    scan: bool = key(
        True,
        help="look for the items in the data before the run, to tell which the model had read and the score"
        " on the rest",
    )

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise RecipeError(
                f"train.eval.name = {self.name!r}: expected letters, digits, -, _ and ., a letter or digit first",
                "train.eval",
            )
        if not self.files:
            raise RecipeError(
                f"train.eval.files = [] of {self.name}: expected at least one file", "train.eval"
            )
        if self.shots_from is not None and not self.shots:
            raise RecipeError(
                f"train.eval.shots_from of {self.name}: expected train.eval.shots above 0 with it",
                "train.eval",
            )

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether the model is evaluated after this step of a run of so many."""
        return step + 1 == num_steps or (self.every > 0 and (step + 1) % self.every == 0)
