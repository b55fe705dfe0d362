"""The recipe's [dedup] table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import RecipeError, key
from stages.dedup.inside.options import InsideTable

Keep = Literal["longest", "earliest", "newest"]
"""Which of several documents is preferred. One without a time of capture comes after those with one."""

BY_DATE: Final = ("earliest", "newest")
"""Those that hang on dates."""

Normalise = Literal["fineweb", "none", "slimpajama"]
"""What is made alike in two texts before they are compared (`stages/dedup/normalise.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupTable:
    """What counts as a repetition, how it is looked for, and which copy stays.

    With b bands of r rows a pair of Jaccard s becomes a candidate with probability 1 - (1 - s^r)^b (Leskovec,
    Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.2): with the defaults .06 at s = .5, .95 at
    .8, .9999 at .9. The curve is an S that climbs at about s = (1 / b)^(1 / r), .71 with the defaults: more
    bands move it to the left and give more candidates, more rows move it to the right and miss more pairs."""

    url: bool = key(True, help="drop all but one document of each normalised URL")
    exact: bool = key(True, help="drop all but one document of each clean text")
    near: bool = key(True, help="drop documents whose shingle Jaccard with a kept one reaches the threshold")
    num_perm: int = key(128, at_least=1, at_most=4096, help="values in a MinHash signature")
    bands: int = key(16, at_least=1, help="bands a signature is cut into; bands x rows is at most num_perm")
    rows: int = key(8, at_least=1, help="signature values in each band")
    shingle: int = key(
        5,
        at_least=1,
        at_most=64,
        unit="words or characters",
        help="length of a shingle, in units of shingle_unit",
    )
    shingle_unit: Literal["word", "character", "code"] = key(
        "word",
        help="unit of shingles: words; characters, including white space (Nemotron-CC: 24); or code:"
        " runs of ASCII letters, digits and underscores (StarCoder: 5)",
    )
    scheme: Literal["fast", "datasketch"] = key(
        "fast", help="implementation of signatures: our own, or the library datasketch (affine32, SHA-1)"
    )
    normalise: Normalise = key(
        "fineweb",
        help="normalisation of texts before comparison: as in FineWeb, as in SlimPajama, or none",
    )
    verify: bool = key(
        True,
        help="check that the Jaccard of a candidate pair reaches the threshold; false: a shared band"
        " is enough",
    )
    threshold: float = key(
        0.8, above=0, at_most=1, help="verified Jaccard at which two texts are near-duplicates"
    )
    keep: Keep = key(
        "longest",
        help="which copy stays: the longest text, the first capture, or the last",
    )
    engine: Literal["auto", "local", "ray_data"] = key(
        "auto", help="where documents are compared: this process, or Ray Data tasks; the bytes are the same"
    )
    against: tuple[str, ...] = key(
        (), is_path=True, help="outputs of finished runs whose kept documents must not be repeated"
    )
    inside: InsideTable = key(InsideTable())

    def __post_init__(self) -> None:
        if self.bands * self.rows > self.num_perm:
            raise RecipeError(
                f"dedup.bands = {self.bands} and dedup.rows = {self.rows} need {self.bands * self.rows}"
                f" values of a"
                f" signature, but dedup.num_perm = {self.num_perm}: expected bands x rows of at most num_perm"
            )
