"""The published recipes that a template follows, step by step: what is the same here, what is near, what is
not here.

`sluice recipe diff FILE --against NAME` prints these rows; `python -m pipeline.recipe_help.published
docs/recipes.md` writes them into the page, between its marks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Here = Literal["same", "near", "not here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A step of a published recipe: what the `original` does, whether it is `here`, and the reason where it
    is not the same."""

    step: str
    original: str
    here: Here
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published recipe: its `sources`, and its steps in order."""

    title: str
    sources: str
    steps: tuple[PublishedStep, ...]


def _same(step: str, original: str) -> PublishedStep:
    return PublishedStep(step=step, original=original, here="same")


def _near(step: str, original: str, reason: str) -> PublishedStep:
    return PublishedStep(step=step, original=original, here="near", reason=reason)


def _not_here(step: str, original: str, reason: str) -> PublishedStep:
    return PublishedStep(step=step, original=original, here="not here", reason=reason)


_EXTRACTION: Final = _near(
    "extraction",
    "trafilatura for precision, with its deduplication",
    "the call is the same; datatrove's deduplication remembers the pages that its process saw before, so"
    " that a text depends on them, and no state passes between documents here",
)
_LISTS: Final = _near(
    "URL lists",
    "UT1's hosts and URLs, hard words, two soft words, sub-words",
    'url.match = "fineweb" matches as datatrove does; the lists are not shipped (UT1 is CC BY-SA): name them'
    " in url.block_hosts, block_urls, block_words, block_soft_words and block_subwords",
)
_PII: Final = _near(
    "personal data",
    "e-mail and public IPv4 addresses become published texts by turns",
    "the texts are the same and begin anew in each text, since no state passes between documents; what is"
    " found is what the step pii finds: IPv6 too, and no number of four parts that what stands around it calls"
    " a section or a version",
)
_KEPT: Final = _near(
    "who of a cluster is kept",
    "the first by file and line, of all that are joined through others",
    "the longest, and a text goes only where it shares a band with one that is kept: what is merely joined"
    " through others stays",
)
_EXACT: Final = _near(
    "exact duplicates",
    "none of its own",
    "equal texts are found first: they share every band, so that the same ones go",
)
_WORDS: Final = _near(
    "shingles",
    "5 words of the language's word tokenizer",
    "5 words between white space, and characters in scripts without it",
)
_CANDIDATES: Final = _same(
    "near-duplicates", "MinHash of 14 bands of 8 rows, unverified, over datatrove's simplified text"
)

PUBLISHED: Final[Mapping[str, Published]] = {
    "fineweb": Published(
        title="FineWeb",
        sources="Penedo et al. 2024, and datatrove 0.10.1, examples/fineweb.py",
        steps=(
            _LISTS,
            _EXTRACTION,
            _near(
                "language",
                "fastText's lid.176.bin, English above 0.65",
                "the bundled model is lid.176.ftz, the same model quantised, whose scores differ a little;"
                " language.model takes the path of the other",
            ),
            _same("Gopher's repetition rules", "datatrove's GopherRepetitionFilter"),
            _same("Gopher's quality rules", "datatrove's GopherQualityFilter"),
            _same("C4's rules", "datatrove's C4QualityFilter without terminal punctuation"),
            _same("FineWeb's rules", "datatrove's FineWebQualityFilter"),
            _CANDIDATES,
            _WORDS,
            _KEPT,
            _EXACT,
            _near(
                "which documents are compared",
                "those of one crawl",
                "those of one run: give each crawl a run of its own, without dedup.against",
            ),
            _PII,
        ),
    ),
    "fineweb2": Published(
        title="FineWeb-2",
        sources="Penedo et al. 2025, huggingface/fineweb-2 at d0defb2, and datatrove 0.10.1",
        steps=(
            _LISTS,
            _EXTRACTION,
            _near(
                "language",
                "GlotLID's label, with the least score of its configuration",
                "GlotLID is a file to get and to name in language.model, with language.score_table ="
                ' "fineweb2"; until'
                " then lid.176.ftz labels the texts, above 0.65",
            ),
            _near(
                "order",
                "near-duplicates go before the filters",
                "they go behind them: of copies that the filters judge alike as many are left, and cluster"
                " sizes count what passed",
            ),
            _same("Gopher's repetition rules", "thresholds of the language's configuration"),
            _same(
                "FineWeb's rules",
                "thresholds of the configuration, no rule of short lines, 0.1 of repeated lines",
            ),
            _same("Gopher's quality rules", "thresholds and stop words of the configuration"),
            _near(
                "words",
                "the tokenizer that datatrove assigns to the language",
                "the same for 1,817 of 1,929 configurations; Korean by another model of Kiwi's; 111 ask for"
                " Stanza's"
                " downloads or for Burmese, Khmer, Lao or Tibetan: their texts go as quality.no_table; in Korean, Thai"
                " and Vietnamese a run of more than 1,000 characters without white space is cut every 1,000, since"
                " these tokenizers take the square of it",
            ),
            _same("mojibake", "ftfy with datatrove's settings"),
            _PII,
            _near(
                "symbol lines",
                "a run of lines of | and spaces becomes one empty paragraph, behind personal data",
                "the same edit, before personal data is looked for",
            ),
            _CANDIDATES,
            _WORDS,
            _KEPT,
            _EXACT,
            _near(
                "rehydration",
                "a document is written 1 to 8 times by its cluster's size; 1,856 languages have tables of their own",
                "the same table in [repeat], and it is read so often from one copy; a language's own table, of its"
                " misc/rehydration/weights, is not shipped: give it in [repeat.language.NAME]",
            ),
            _not_here(
                "precision lists",
                "word lists for languages that others are taken for",
                "they are not in its configurations",
            ),
        ),
    ),
    "dclm": Published(
        title="RefinedWeb, as DCLM has it",
        sources="Li et al. 2024, mlfoundations/dclm, baselines_configs/dclm_baseline_refinedweb.yaml",
        steps=(
            _near(
                "URL lists",
                "curated hosts; strict, hard and soft words",
                'url.match = "dclm" matches as url_substring_filter does; the lists are not shipped: name'
                " them in url.block_hosts, block_subwords (strict), block_words (hard) and block_soft_words. The words"
                " lie in mlfoundations/dclm, baselines/mappers/banlists",
            ),
            _same("extraction", "resiliparse, main content"),
            _same(
                "URLs in texts",
                "url_removal_modifier: addresses go, from texts that begin with the letters of a top-level domain, as"
                " half of all do; IP addresses from all",
            ),
            _same("line feeds", "no more than two in a row"),
            _near(
                "language",
                "fastText's lid.176.bin, English above 0.65, behind the removal of URLs",
                "lid.176.ftz, the same model quantised, whose scores differ a little (language.model takes the path of"
                " the other), and before URLs go",
            ),
            _same("Gopher's quality rules", "content_filters.py, in the order of the configuration"),
            _same("Gopher's repetition rules", "massive_web_repetition_filters"),
            _same("line edits", "modifiers.py, and 0.05 of the words at most"),
            _not_here(
                "paragraph duplicates",
                "bff over paragraphs and pages",
                "near-duplicates of whole texts go instead",
            ),
            _near(
                "near-duplicates",
                "RefinedWeb: MinHash of 450 bands of 20 rows",
                "16 bands of 8 rows, verified at 0.8: 128 values a text, and not 9,000",
            ),
            _near(
                "classifier",
                "fasttext-oh-eli5, the best tenth by score",
                "a [[classifier]] takes the model's file; a [[bucket]] with percentiles = [90] makes the"
                " best tenth a source of its own, which a mixture takes alone",
            ),
        ),
    ),
    "dolma3": Published(
        title="Dolma 3, web",
        sources="allenai/datamap-rs at f771794, configs/all_dressed/all_dressed_config.yaml",
        steps=(
            _near(
                "URL lists",
                "RefinedWeb's and FineWeb's lists",
                'one way of matching holds for all lists of a recipe: "dclm" here; the lists are not shipped: see'
                " allenai/datamap-rs, banlists",
            ),
            _same("extraction", "resiliparse, main content"),
            _same("length", "150 characters"),
            _near(
                "Gopher's quality rules",
                "page, word, symbol, bullet, ellipsis, letter and stop word rules",
                "DCLM's measures: datamap-rs counts a page's words by UAX #29, in ASCII texts by letters and"
                " digits",
            ),
            _same("line feeds", "no more than two in a row"),
            _near(
                "Gopher's repetition rules",
                "massive_web_repetition_filter",
                "DCLM's measures, which it was written after",
            ),
            _near(
                "line edits",
                "RefinedWeb's, in Rust",
                "the same, and phrases are cut from lines of up to 10 words, as its configuration says and"
                " its code does not read",
            ),
            _near(
                "language",
                "lid.176.bin, English from 0.65, behind line edits",
                "lid.176.ftz, the same model quantised, whose scores differ a little, above 0.65, and before the rules:"
                " a text is identified as it was before its lines went",
            ),
            _same("MADLAD's rules 2 and 5", "five sentences, less than a fifth of them suspect"),
            _same("exact duplicates", "one of equal texts stays"),
            _near(
                "near-duplicates",
                "MinHash of 26 bands of 11 rows, verified at 0.8, the newest kept",
                "the same bands, threshold and copy; the texts are normalised the same way; words are those"
                " between white space",
            ),
            _not_here(
                "substrings", "repeats of 500 bytes are cut, and what is near them", "no step cuts substrings"
            ),
            _near(
                "topics",
                "a fastText model of 24 topics",
                'a [[classifier]] with label = "*" takes the model\'s file, and a [[bucket]] parts by its'
                " classes",
            ),
            _near(
                "upsampling",
                "a curve over quality for each topic, whose target follows from the mixture",
                "the same curve, at the end of the file behind a #, since it asks for the classifier's file: a"
                ' [[bucket]] with percentiles = [5, …, 95] weighed by tokens, and [repeat] with by = "bucket" and one'
                " target; buckets by topic beside it have each a curve of their own",
            ),
        ),
    ),
    "code": Published(
        title="The Stack v2 and StarCoder",
        sources="Lozhkov et al. 2024, section 3; Li et al. 2023, section 3; bigcode-project/bigcode-dataset",
        steps=(
            _near(
                "language",
                "go-enry: by name, first line and content",
                "as Linguist 9.6, of which go-enry is a port, tells it: by modeline, name, first line, extension and"
                " patterns in the text; where those leave several languages, the usual one of the extension in place"
                " of a trained classifier",
            ),
            _near(
                "licence",
                "permissive files only, as ScanCode and GitHub tell; the repository's where the file has"
                " none",
                "a column `license` and no rule: SPDX names of heads and of licence texts, else the row's own"
                " field",
            ),
            _same("lines", "100,000 lines, 1,000 characters a line and 100 on the mean; 100,000 for markup"),
            _same(
                "letters", "a quarter letters; letters or digits for Motorola 68K assembly and WebAssembly"
            ),
            _same(
                "encoded data",
                "1,024 characters in a run of base64, hexadecimal bytes or escapes; half of a file",
            ),
            _near(
                "generated files",
                "five phrases in the first five lines, and go-enry's is_generated",
                "the phrases; of go-enry's marks those of stages/quality/code/generated.py; lines tell"
                " minified files",
            ),
            _same(
                "XML and HTML",
                "no XML behind other names; HTML with more than 100 visible characters and a fifth of it, as"
                " BeautifulSoup's get_text counts them",
            ),
            _same(
                "data formats",
                "at most 512 lines of text, JSON, YAML, OWL and DOT; text files called readme, notes, todo, description"
                " or cmakelists, or that have requirement in their name",
            ),
            _near(
                "notebooks",
                "scripts by Jupytext, and triplets of text, code and output",
                "scripts in Jupytext's percent format; outputs go",
            ),
            _same(
                "near-duplicates",
                "MinHash of 25 bands of 10 rows, unverified, over runs of letters and digits",
            ),
            _near(
                "who of a cluster is kept",
                "one of all that are joined through others, by stars and forks",
                "the longest, and a file goes only where it shares a band with one that is kept",
            ),
            _near(
                "shingles",
                "5 tokens, of which what stands between two marks may be an empty one; shorter files go",
                "5 tokens without empty ones; a shorter file is one shingle",
            ),
            _near(
                "personal data",
                "a model for names, e-mail, keys, passwords, IP addresses",
                "e-mail, public IP addresses and the secrets of known issuers, by patterns; no names",
            ),
        ),
    ),
}
"""By the template's name."""

_MARKS: Final = (
    "<!-- The published recipes, written by `make docs`. -->\n",
    "<!-- End of the published recipes. -->\n",
)


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    before, begin, rest = page.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    assert begin and end, f"the page lacks the lines {_MARKS}"
    return before + begin + "\n" + "\n".join(_tables()) + "\n" + end + after


def _tables() -> Iterator[str]:
    for name, published in PUBLISHED.items():
        yield from (
            f"## {published.title}: `sluice recipe new {name}`",
            "",
            f"Source: {published.sources}.",
            "",
        )
        yield from ("| step | the original | here | why |", "| --- | --- | --- | --- |")
        for each in published.steps:
            cells = (each.step, each.original, each.here, each.reason)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""


def main() -> None:
    """Writes the tables of the page that the call names."""
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
