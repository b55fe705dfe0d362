"""What the report's page shows, as data: no markup and no access to the output."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelRow:
    """One line of a funnel. Bytes are of the records as the crawl files store them, of a compressed member
    that holds several a like share for each document; `chars` of the clean texts."""

    stage: str
    num_in: int
    num_out: int
    num_rejected: int
    bytes_in: int
    bytes_out: int
    chars_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """The steps of a source (or of all), how many documents and stored bytes (0 of Parquet, whose rows have
    no length) came to the first of them and how many documents the last one let out, and what went into its
    shards; some of it may have been purged since."""

    source: str
    steps: tuple[FunnelRow, ...]
    num_in: int
    num_out: int
    bytes_in: int
    num_tokens: int
    num_shards: int
    num_purged: int
    num_tokens_purged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A scrubbed piece of one document, and a note on it. `pieces` is its text cut into (words, whether they
    are marked: words that differ from those of the document it is compared with, lines that count against
    it); none if the excerpt is not, or no longer, kept. `link` is its URL where that is one of the web, else
    empty."""

    doc_id: str
    url: str
    link: str = ""
    note: str
    pieces: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleGroup:
    """Documents that are shown for one reason."""

    title: str
    excerpts: tuple[Excerpt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBar:
    """The documents whose value lies in one range: `num`, of which no other rule rejects `num_alone`.
    `height` and `height_alone` are shares of the highest bar, on a scale of square roots; `is_rejected`: the
    rule rejects them."""

    label: str
    num: int
    num_alone: int
    height: float
    height_alone: float
    is_rejected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdOption:
    """Another threshold (or the one that is set): how many documents the rule then rejects, how many
    survive the filters where all other rules stay (duplicates are not looked at), and how many more or fewer
    those are."""

    threshold: str
    num_rejected: int
    num_kept: int
    change: int
    is_set: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleValues:
    """A rule's values over all documents that it measured. The threshold stands before bar number `line`;
    `side` says in words which values are rejected; `explored` is empty, or which share of the documents was
    looked at."""

    side: str
    num_measured: int
    bars: tuple[HistogramBar, ...]
    line: int
    options: tuple[ThresholdOption, ...]
    explored: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule, how many documents it rejected, in all and of each source, a few of them, and where the
    whole ledger is kept its values. `anchor` is its place on the page."""

    stage: str
    rule: str
    anchor: str
    num: int
    by_source: tuple[tuple[str, int], ...]
    share: float
    threshold: str
    examples: tuple[ExampleGroup, ...]
    values: RuleValues | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a histogram or ranking; `share` of the longest, 0 to 1."""

    label: str
    num: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCluster:
    """A cluster of duplicates and some of its members side by side, the kept one first."""

    cluster_id: str
    num_documents: int
    num_kept: int
    members: tuple[Excerpt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A line of the shard table. Its length stays when documents of it are purged."""

    source: str
    shard: int
    num_tokens: int
    num_documents: int
    num_tokens_purged: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """A token with which documents begin, as text where the tokenizer is at hand, and how many of them do."""

    id: int
    text: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensRow:
    """How a source's documents lie in its shards: of `num_documents` with `num_tokens` that were looked at
    (all, or where it `is_sample` those at the beginning of some shards), which tokens are first most often,
    how many end with end-of-text, and how many tokens stand for what the vocabulary does not know, where it
    `has_unknown`."""

    source: str
    num_documents: int
    num_tokens: int
    is_sample: bool
    first: tuple[FirstToken, ...]
    num_ended: int
    has_unknown: bool
    num_unknown: int

    @property
    def begins_alike(self) -> bool:
        """Whether nearly all documents begin with one token, as no texts do."""
        return self.num_documents >= 20 and bool(self.first) and self.first[0].share > 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """A part of a source, by the name that mixtures take it by, and its `share` of the source's tokens."""

    name: str
    num_documents: int
    num_tokens: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBar:
    """The kept documents whose score lies in one range; `height` is a share of the highest bar, on a scale of
    square roots; `num_cuts` stand at its beginning or in it."""

    label: str
    num: int
    height: float
    num_cuts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutColumn:
    """A column of scores that a [[bucket]] cuts, and the texts on either side of each cut."""

    bucket: str
    column: str
    cuts: tuple[str, ...]
    bars: tuple[ScoreBar, ...]
    examples: tuple[ExampleGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpeed:
    """How fast a step was: the `seconds` of all its processes together, their `share` of what units of work
    took, and the documents and bytes of records (as the crawl files store them) that it took in."""

    stage: str
    num: int
    seconds: float
    share: float
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """A figure that was predicted, the bounds of its interval, and what the run came to (empty where that is not
    counted), with units; `is_outside` the interval."""

    name: str
    value: str
    low: str
    high: str
    real: str
    is_outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedRow:
    """What was raised at one line of the code, on how many records, the first of them, and its traceback."""

    stage: str
    error: str
    where: str
    num: int
    first: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRow:
    """Kept documents of a host that one kind of publishers' signals denies."""

    host: str
    kind: str
    num_documents: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSignals:
    """What the signals of kept documents come to for training: documents by outcome, signals by kind and those that
    could not be parsed, the hosts that deny the most tokens, and licences with their documents and hosts."""

    num_denied: int
    num_allowed: int
    num_unknown: int
    num_malformed: int
    kinds: tuple[tuple[str, int], ...]
    hosts: tuple[SignalRow, ...]
    licenses: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything on the page. `state` names the index and the purges that it was gathered from; `out` is the
    output as a command line names it; `edits` are personal data that was replaced, `other_edits` what else
    was changed in kept texts, by stage and kind; `parsed_texts` says what run.keep_text keeps, or is empty;
    `limited` names the sources of which not all was read; `tables` by whose tables the quality rules judged
    texts, or is empty. `has_ledger`: every rule's values are kept; `unlike_pages` are warnings of texts
    behind one page that differ; `num_without_page` documents of no page; `parts` are those that languages and
    [[bucket]] make of sources, and `empty_parts` sentences on what no document is in, or no
    epoch reads."""

    name: str
    state: str
    out: str
    has_ledger: bool
    totals: tuple[tuple[str, str], ...]
    funnels: tuple[Funnel, ...]
    rules: tuple[RuleRow, ...]
    languages: tuple[Bar, ...]
    tables: str
    lengths: tuple[Bar, ...]
    scores: tuple[Bar, ...]
    signals: PublisherSignals | None
    clusters: tuple[ShownCluster, ...]
    edits: tuple[Bar, ...]
    other_edits: tuple[Bar, ...]
    parts: tuple[PartRow, ...]
    cut_columns: tuple[CutColumn, ...]
    empty_parts: tuple[str, ...]
    shards: tuple[ShardRow, ...]
    tokens: tuple[TokensRow, ...]
    unread: str
    unreadable: tuple[tuple[str, int, int, str], ...]
    truncated: tuple[tuple[str, int, int], ...]
    notes: tuple[str, ...]
    timeouts: tuple[str, ...]
    raised: tuple[RaisedRow, ...]
    purges: tuple[tuple[str, str, str, str, int, int], ...]
    speeds: tuple[StepSpeed, ...]
    phases: tuple[tuple[str, float, str], ...]
    predicted: tuple[PredictedRow, ...]
    capped_buckets: int
    unlike_pages: tuple[str, ...]
    num_without_page: int
    parsed_texts: str
    limited: tuple[str, ...]
    recipe: str


def human_value(value: float | None) -> str:
    """A measured value for people; empty where a rule measures none."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
