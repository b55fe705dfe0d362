"""How alike the texts of different documents of an output are, by their signatures.

The bound UNLIKE of pipeline/dedup/near.py rests on it (docs/rules.md, "Texts behind one page").

  python -m benchmarks.page_texts OUT [SOURCE]
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from pipeline.dedup.near import UNLIKE
from pipeline.recipe.load import recipe_of
from stages.dedup.bands import unpack_signatures


def estimates(out: Folder, source: str | None) -> npt.NDArray[np.float64]:
    """The estimated Jaccard of every pair of kept documents that have a signature."""
    table, found = recipe_of(out).dedup, []
    for entry in read_index(out).dedup:
        if source in (None, entry.source):
            with out.open(entry.file) as file:
                rows = pq.read_table(file, columns=["signature"])["signature"].drop_null()
            found.append(unpack_signatures(rows, table))
    signatures = np.concatenate(found)
    return np.concatenate(
        [(one == signatures[number + 1 :]).mean(axis=1) for number, one in enumerate(signatures[:-1])]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out")
    parser.add_argument("source", nargs="?")
    options = parser.parse_args()
    found = np.sort(estimates(Folder(options.out), options.source))
    most = np.quantile(found, 0.999)
    print(f"{len(found):,} pairs: least {found[0]:.3f}, greatest {found[-1]:.3f}, 99.9% up to {most:.3f}")
    print(f"{np.count_nonzero(found >= UNLIKE):,} reach {UNLIKE}")


if __name__ == "__main__":
    main()
