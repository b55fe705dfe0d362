"""What a recipe with other thresholds would keep, lose and gain, from the ledger of a finished run.

The ledger (quality.ledger = "all") has what every rule measured, so a threshold of a rule can be judged again
without a text. Nothing is guessed: a rejected document that now passes is open if a later step never saw it, or if a
later rule set measured its text before an edit. Open documents are judged from their texts if the run kept these
(`run.keep_text`). Duplicates are not looked at. Of repeats that were cut inside documents it counts those whose text
stays in a document that is lost: a run finds them anew, and the next copy stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lineage.index.output_index import check_finished
from lineage.json_record import Json
from lineage.recipe import RecipeError, as_plain
from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE
from lineage.store.queries.sql import QueryResult, questions
from lineage.store.queries.views import text_literal
from pipeline.inspect.open_documents import MOST, survivors
from pipeline.recipe.checks import check_steps_of
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, tables_of
from stages.chain import build_chain
from stages.quality.languages import language_code
from stages.quality.rule_sets.catalogue import RULE_SETS, threshold_defaults
from stages.quality.step import every_rule
from stages.rules import SIDES, Rule
from stages.steps.catalogue import CATALOGUE, STAGES, rules_of
from stages.steps.language import labels_of, least_score

_NOT_LOOKED_AT: Final = (
    "run", "ray", "dedup", "tokenize", "bucket", "repeat", "limits.max_bad_records", "quality.ledger",
)  # fmt: skip
"""What decides nothing of which texts the filters keep."""
_AT_ONCE: Final = 1000
"""Positions of rules within a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRule:
    """A rule: its place among all rules, and what the old and the new recipe have as it. `new` None: the new
    one does not have it."""

    old: Rule
    new: Rule | None
    position: int

    @property
    def is_changed(self) -> bool:
        """Whether the new recipe has it with another verdict."""
        return self.new is not None and not self.new.verdict_is_that_of(self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCounts:
    """Documents under a name (a language, a host, a rule): that survive the filters before and after, and the
    differences. `open` ones were rejected, and neither the ledger nor a kept text tells what becomes of
    them."""

    name: str | None
    before: int
    after: int
    lost: int
    gained: int
    open: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A document whose outcome changes. For one that is lost: the rule that takes it now, its value and
    threshold; for others the rule that took it before."""

    outcome: str
    doc_id: str
    url: str | None
    language: str | None
    rule: str | None
    value: float | None
    threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The answer for one recipe. `changed` are the keys that were judged, `not_looked_at` those that differ
    and were not; `judged_later_by` are the steps that open documents have not met. `from_texts` counts the documents
    that the ledger left open and that their kept texts decided; `open_alone` the open ones that no other recorded rule
    rejects. `by_rule` counts the lost ones. `num_relying` documents that are not lost had `num_relying_chars`
    characters cut (dedup.inside) that stay in lost ones."""

    recipe: str
    changed: tuple[str, ...]
    not_looked_at: tuple[str, ...]
    judged_later_by: tuple[str, ...]
    from_texts: int
    open_alone: int
    total: TuneCounts
    by_language: tuple[TuneCounts, ...]
    by_host: tuple[TuneCounts, ...]
    by_rule: tuple[tuple[str, int], ...]
    examples: tuple[Example, ...]
    num_relying: int = 0
    num_relying_chars: int = 0

    def as_json(self) -> dict[str, object]:
        """As `sluice tune --json` gives it."""
        return asdict(self)


def tune(out: str, recipes: Sequence[tuple[str, PipelineRecipe]], num_examples: int = 5) -> list[TuneResult]:
    """The answers for recipes (with their names) about the finished output at `out`; `num_examples` of each
    outcome.

    RecipeError where the output has no whole ledger, or a recipe differs in a key that the ledger cannot
    judge."""
    folder = Folder(out)
    check_finished(folder)
    old = recipe_of(folder)
    if old.quality.ledger != "all":
        raise RecipeError(
            f'{out} was made with quality.ledger = "{old.quality.ledger}", which keeps the deciding rule'
            f" alone: run its"
            ' recipe into a new output with quality.ledger = "all"'
        )
    plans = [(name, recipe, *_check_differences(name, out, old, recipe)) for name, recipe in recipes]
    with questions(folder) as ask:
        return [_tuned(folder, ask, old, plan, num_examples) for plan in plans]


def _check_differences(
    name: str, out: str, old: PipelineRecipe, new: PipelineRecipe
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that differ: those that are judged, and those that are not looked at."""
    check_steps_of(new)
    keys = sorted(set(_differing(as_plain(old), as_plain(new), "")))
    passed = tuple(key for key in keys if key.startswith(_NOT_LOOKED_AT))
    judged = tuple(key for key in keys if key not in passed)
    for key in judged:
        if why := _cannot_judge(key, old, new):
            raise RecipeError(
                f"{name}: {key} differs from the recipe of {out}, and {why}: leave it as it was (recipe.toml"
                " there has every setting of that run), or run the recipe into a new output",
                key,
            )
    return judged, passed


def _differing(a: Any, b: Any, where: str) -> list[str]:
    # A table that only one of them has differs in each of its keys.
    a, b = ({} if x is None and isinstance(y, dict) else x for x, y in ((a, b), (b, a)))
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            key
            for name in a.keys() | b.keys()
            for key in _differing(a.get(name), b.get(name), f"{where}.{name}" if where else name)
        ]
    if (
        isinstance(a, list)
        and isinstance(b, list)
        and len(a) == len(b)
        and all(isinstance(v, dict) for v in a + b)
    ):
        return [key for x, y in zip(a, b, strict=True) for key in _differing(x, y, where)]
    return [] if a == b else [where]


def _cannot_judge(key: str, old: PipelineRecipe, new: PipelineRecipe) -> str | None:
    """Why the ledger cannot tell what this key changes; None where it can."""
    table, _, name = key.rpartition(".")
    if key == "quality.rules":
        left = [name for name in old.quality.rules if name in new.quality.rules]
        cut = set(old.quality.rules) - set(new.quality.rules)
        # Rule sets that edit a text which they let pass.
        editing = {found.name for found in every_rule(old.quality) if found.edit is not None}
        edits_too_little = bool(cut & editing) and bool(left or _judged_behind_quality(old))
        return (
            None
            if list(new.quality.rules) == left and not edits_too_little
            else "the ledger has no such measures"
        )
    if (
        key in ("language.keep", "language.min_score", "language.score_table")
        or table == "language.min_scores"
    ):
        if old.language.prefilter or min(map(least_score, (old.language, new.language))) < 0.5:
            return "with a prefilter, or a score under 0.5, another language may decide"
        if key == "language.keep" and _may_name_languages(old):
            return "a step of your own may have named the language that lineage has"
        return None if old.language.kept and new.language.kept else "the ledger has no such rule"
    of_quality = table == "quality" or table.startswith("quality.language.")
    if old.quality.variant == new.quality.variant or not of_quality:
        if (f"quality.{name}" if of_quality else key) in _judged_keys(new):
            return None
        if of_quality and threshold_defaults(name):
            return "it changes what is measured"
    return "the ledger cannot tell what it changes"


def _judged_keys(recipe: PipelineRecipe) -> set[str]:
    """The keys that say which of the recorded values reject, and change nothing of what is measured."""
    tables = tables_of(recipe)
    with_all_sets = replace(tables, quality=replace(tables.quality, rules=RULE_SETS))
    rules = (rule for spec in CATALOGUE.values() for rule in spec.rules(with_all_sets))
    return {key for rule in rules if not rule.is_bound for key in rule.keys}


def _judged_behind_quality(recipe: PipelineRecipe) -> bool:
    """Whether a step may reject a text as the rule sets have edited it."""
    return any(
        _may_turn_down(stage, recipe) for chain in _chains(recipe) for stage in _behind(chain, "quality")
    )


def _may_name_languages(recipe: PipelineRecipe) -> bool:
    """Whether a step of the user's may have given a document another language than the step `language`
    did."""
    return any(":" in stage for chain in _chains(recipe) for stage in _behind(chain, "language"))


def _rules(old: PipelineRecipe, new: PipelineRecipe) -> tuple[list[JudgedRule], int | None]:
    """Every rule of the old recipe, and the position of the last rule before an edit that later ones see."""
    stages = [stage for stage in STAGES if any(stage in chain for chain in _chains(old))]
    now = rules_of(tables_of(new))
    rules: dict[str, JudgedRule] = {}
    for stage in stages:
        for number, rule in enumerate(rules_of(tables_of(old), [stage]).values()):
            position = STAGES.index(stage) * _AT_ONCE + number
            rules[rule.name] = JudgedRule(old=rule, new=now.get(rule.name), position=position)
    edit_ends: int | None = None
    sets = every_rule(old.quality) if "quality" in stages else ()
    last = STAGES.index("quality") * _AT_ONCE  # that of quality.no_table, before all rule sets
    for number, found_set in enumerate(sets):
        last = rules[found_set.rules[-1].name].position if found_set.rules else last
        if found_set.edit is not None and any(
            later.name in new.quality.rules for later in sets[number + 1 :]
        ):
            edit_ends = last
    return list(rules.values()), edit_ends


def _condition(rule: JudgedRule, labels: Sequence[str]) -> str:
    """The SQL by which a finding `f` (of document `d`) rejects under the new recipe. `labels` are the
    languages of the documents."""
    new = rule.new
    if new is None:
        return SIDES["never"].sql
    if not rule.is_changed:
        return "f.verdict = 'reject'"  # as it was recorded, by the release that made the output
    if new.side == "not among":
        passing = sorted({*new.among, *labels_of(new.among, labels)})
        return SIDES[new.side].sql.format(value="d.language", threshold=", ".join(map(text_literal, passing)))
    return SIDES[new.side].sql.format(value="f.value", threshold=_threshold_sql(new, labels))


def _threshold_sql(rule: Rule, labels: Sequence[str]) -> str:
    """The threshold for the text of a document `d` in SQL; NULL, which rejects nothing, where its language
    has none."""
    alike = "NULL" if rule.threshold is None else repr(float(rule.threshold))
    own = {label: rule.by_language.get(language_code(label)) for label in labels}
    cases = [
        f"WHEN {text_literal(label)} THEN {value!r}::DOUBLE"
        for label, value in own.items()
        if value is not None
    ]
    return f"(CASE d.language {' '.join(cases)} ELSE {alike} END)" if cases else alike


def _judged_sql(old: PipelineRecipe, new: PipelineRecipe, labels: Sequence[str]) -> str:
    """A SELECT with a row for each document: its outcome (kept, lost, gained, open, rejected) and deciding
    rules.

    `now` and `before` are the positions of the first rules that reject under the new and the old recipe.
    Rules of other stages keep their verdicts; their position is that of their stage. A record that two
    sources have read is a document of each, under one id: to each belong the findings of the stages that its
    source has; and of those that reject, those of the stage that turned it down."""
    rules, edit_ends = _rules(old, new)
    rejects = " ".join(f"WHEN '{rule.old.name}' THEN {_condition(rule, labels)}" for rule in rules)
    positions = " ".join(f"WHEN '{rule.old.name}' THEN {rule.position}" for rule in rules)
    stages = " ".join(f"WHEN '{stage}' THEN {number * _AT_ONCE}" for number, stage in enumerate(STAGES))
    thresholds = " ".join(
        f"WHEN '{rule.old.name}' THEN {_threshold_sql(rule.new, labels)}"
        for rule in rules
        if rule.is_changed
        and rule.new is not None
        and (rule.new.threshold is not None or rule.new.by_language)
    )
    threshold = f"CASE f.rule {thresholds} ELSE f.threshold END" if thresholds else "f.threshold"
    chains = _chains_by_source(old)
    met = _pairs((source, stage) for source, chain in chains.items() for stage in chain)
    last = _pairs((source, stage) for source, chain in chains.items() for stage in _last(chain, new))
    # A text that was rejected before an edit was measured without it by the rule sets behind it.
    unedited = (
        "false" if edit_ends is None else f"coalesce(j.before <= {edit_ends} AND d.stage = 'quality', false)"
    )
    beyond = "false" if edit_ends is None else f"coalesce(j.now > {edit_ends}, true)"
    return f"""
    WITH found AS (
      SELECT f.doc_id, d.source, coalesce(d.stage, '') AS ended, f.rule, f.value, d.language,
        coalesce(CASE f.rule {rejects} ELSE f.verdict = 'reject' END, false) AS rejects,
        f.verdict = 'reject' AS rejected,
        CASE f.rule {positions} ELSE CASE f.stage {stages} ELSE 0 END END AS position,
        {threshold} AS threshold
      FROM findings f JOIN documents d USING (doc_id)
      WHERE d.stage IS DISTINCT FROM 'identity' AND (d.source, f.stage) IN ({met})
        AND (f.verdict <> 'reject' OR f.stage = d.stage)
    ), judged AS (
      SELECT doc_id, source, ended, min(position) FILTER (rejects) AS now, min(position) FILTER (rejected) AS before,
        arg_min({{'rule': rule, 'value': value, 'threshold': threshold}}, position) FILTER (rejects) AS by
      FROM found GROUP BY doc_id, source, ended
    )
    SELECT d.doc_id, d.source, d.url, d.host, d.language,
      d.rule AS old_rule, d.value AS old_value, d.threshold AS old_threshold,
      j.by.rule AS new_rule, j.by.value AS new_value, j.by.threshold AS new_threshold,
      CASE
        WHEN d.status <> 'rejected' OR d.stage = '{INSIDE}' THEN CASE WHEN j.now IS NULL THEN 'kept' ELSE 'lost' END
        WHEN j.doc_id IS NULL THEN 'rejected'
        WHEN {unedited} AND {beyond} THEN 'open'
        WHEN j.now IS NOT NULL THEN 'rejected'
        WHEN (d.source, d.stage) NOT IN ({last}) THEN 'open'
        ELSE 'gained'
      END AS outcome
    FROM documents d LEFT JOIN judged j
      ON j.doc_id = d.doc_id AND j.source = d.source AND j.ended = coalesce(d.stage, '')
    WHERE d.stage IS DISTINCT FROM 'identity' AND d.purged IS NULL"""


def _judging_stages(recipe: PipelineRecipe) -> list[str]:
    """The stages that may turn a text down once parse has given it, in order; of sources that differ, all."""
    chains = _chains(recipe)
    stages = [stage for chain in chains for stage in _behind(chain, "parse")]
    order = sorted(dict.fromkeys(stages), key=lambda stage: max(c.index(stage) for c in chains if stage in c))
    return [stage for stage in order if _may_turn_down(stage, recipe)]


def _may_turn_down(stage: str, recipe: PipelineRecipe) -> bool:
    """Whether a stage behind parse is there for more than to change a text or to give it a score. A step of
    the user's may do anything."""
    return ":" in stage or any(rule.side != "never" for rule in rules_of(tables_of(recipe), [stage]).values())


def _behind(chain: tuple[str, ...], stage: str) -> tuple[str, ...]:
    """The stages behind `stage`; none where the chain does not have it."""
    return chain[chain.index(stage) + 1 :] if stage in chain else ()


def _last(chain: tuple[str, ...], recipe: PipelineRecipe) -> list[str]:
    """The stages from parse on behind which no other may turn a text down."""
    return [
        stage
        for stage in ("parse", *_behind(chain, "parse"))
        if not any(_may_turn_down(later, recipe) for later in _behind(chain, stage))
    ]


def _chains(recipe: PipelineRecipe) -> list[tuple[str, ...]]:
    """The stages of each source."""
    return list(_chains_by_source(recipe).values())


def _chains_by_source(recipe: PipelineRecipe) -> dict[str, tuple[str, ...]]:
    tables = tables_of(recipe)
    return {source.name: tuple(build_chain(source.steps, tables).stages) for source in recipe.source}


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """(source, stage) as SQL."""
    return ", ".join(f"('{source}', '{stage}')" for source, stage in pairs)


def _tuned(
    out: Folder,
    ask: Callable[[str], QueryResult],
    old: PipelineRecipe,
    plan: tuple[str, PipelineRecipe, tuple[str, ...], tuple[str, ...]],
    num_examples: int,
) -> TuneResult:
    name, new, changed, passed = plan
    labels = [
        str(row[0]) for row in ask("SELECT DISTINCT language FROM documents WHERE language IS NOT NULL").rows
    ]
    judged = _judged_sql(old, new, labels)
    opened = f"FROM ({judged}) WHERE outcome = 'open'"
    ((num_open, num_alone),) = ask(f"SELECT count(*), count(*) FILTER (new_rule IS NULL) {opened}").rows
    found = None
    if int(str(num_open)) <= MOST:
        left = ask(f"SELECT source, doc_id {opened}").rows
        found = survivors(out, new, {(str(source), bytes.fromhex(str(doc_id))) for source, doc_id in left})
    if found is not None:
        gained = _pairs(sorted((source, doc_id.hex()) for source, doc_id in found)) or "(NULL, NULL)"
        judged = (
            f"SELECT * REPLACE (CASE WHEN outcome <> 'open' THEN outcome WHEN (source, doc_id) IN ({gained})"
            f" THEN 'gained' ELSE 'rejected' END AS outcome) FROM ({judged})"
        )
    # One pass over the ledger: the groups, and of each outcome the first documents by id.
    rows = ask(
        f"WITH all_judged AS MATERIALIZED ({judged}),"
        " changes AS (SELECT * FROM all_judged WHERE outcome IN ('lost', 'gained', 'open')),"
        " hosts AS (SELECT host FROM changes GROUP BY host ORDER BY count(*) DESC, host LIMIT 20)"
        " SELECT 'language' AS what, language AS name, outcome, count(*) AS num, NULL AS doc FROM all_judged"
        " WHERE outcome <> 'rejected' GROUP BY language, outcome"
        " UNION ALL SELECT 'host', host, outcome, count(*), NULL FROM all_judged"
        " WHERE outcome <> 'rejected' AND host IN (SELECT host FROM hosts) GROUP BY host, outcome"
        " UNION ALL SELECT 'rule', new_rule, outcome, count(*), NULL FROM changes WHERE outcome = 'lost'"
        " GROUP BY ALL"
        " UNION ALL SELECT 'example', NULL, outcome, 0, {'doc_id': doc_id, 'url': url, 'language': language,"
        " 'rule': CASE outcome WHEN 'lost' THEN new_rule ELSE old_rule END,"
        " 'value': CASE outcome WHEN 'lost' THEN new_value ELSE old_value END,"
        " 'threshold': CASE outcome WHEN 'lost' THEN new_threshold ELSE old_threshold END} FROM changes"
        f" QUALIFY row_number() OVER (PARTITION BY outcome ORDER BY doc_id) <= {num_examples}"
    ).objects()
    by_language = _counts(rows, "language")
    num_relying, num_chars = _relying(ask, judged) if old.dedup.inside.is_on else (0, 0)
    return TuneResult(
        recipe=name,
        changed=changed,
        not_looked_at=passed,
        judged_later_by=tuple(_judging_stages(new)),
        from_texts=0 if found is None else int(str(num_open)),
        open_alone=0 if found is not None else int(str(num_alone)),
        total=_total(by_language),
        by_language=by_language,
        by_host=_counts(rows, "host"),
        by_rule=tuple(
            sorted(
                ((str(row["name"]), int(str(row["num"]))) for row in rows if row["what"] == "rule"),
                key=lambda pair: (-pair[1], pair[0]),
            )
        ),
        examples=tuple(
            Example(outcome=str(row["outcome"]), **row["doc"])  # type: ignore[arg-type]
            for row in sorted(rows, key=lambda row: str(row["outcome"]))
            if row["what"] == "example" and isinstance(row["doc"], dict)
        ),
        num_relying=num_relying,
        num_relying_chars=num_chars,
    )


def _relying(ask: Callable[[str], QueryResult], judged: str) -> tuple[int, int]:
    """Documents that are not lost with text cut that stays in lost ones, and its characters."""
    ((documents, chars),) = ask(
        f"WITH lost AS MATERIALIZED (SELECT DISTINCT doc_id FROM ({judged}) WHERE outcome = 'lost')"
        " SELECT count(DISTINCT doc_id), coalesce(sum(count), 0) FROM edits"
        f" WHERE stage = '{INSIDE}' AND twin IN (FROM lost) AND doc_id NOT IN (FROM lost)"
    ).rows
    return int(str(documents)), int(str(chars))


def _counts(rows: Sequence[Mapping[str, Json]], what: str) -> tuple[TuneCounts, ...]:
    """The counts of a kind of group, those with most changes first."""
    by_name: dict[str | None, dict[str, int]] = {}
    for row in rows:
        if row["what"] == what:
            name = None if row["name"] is None else str(row["name"])
            by_name.setdefault(name, {})[str(row["outcome"])] = int(str(row["num"]))
    counts = [_counted(name, outcomes) for name, outcomes in by_name.items()]
    return tuple(sorted(counts, key=lambda c: (-(c.lost + c.gained + c.open), -c.before, c.name or "")))


def _counted(name: str | None, outcomes: dict[str, int]) -> TuneCounts:
    kept, lost, gained = (outcomes.get(outcome, 0) for outcome in ("kept", "lost", "gained"))
    return TuneCounts(
        name=name,
        before=kept + lost,
        after=kept + gained,
        lost=lost,
        gained=gained,
        open=outcomes.get("open", 0),
    )


def _total(parts: Sequence[TuneCounts]) -> TuneCounts:
    return TuneCounts(
        name=None,
        before=sum(part.before for part in parts),
        after=sum(part.after for part in parts),
        lost=sum(part.lost for part in parts),
        gained=sum(part.gained for part in parts),
        open=sum(part.open for part in parts),
    )
