"""What must hold of a data recipe before a run begins; no file is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lineage.recipe import (
    RecipeError,
)
from lineage.secrets import without_secrets
from lineage.storage.folder import is_remote, not_for_tables
from pipeline.recipe.parts import check_buckets, check_repeats
from pipeline.recipe.tables import (
    PipelineRecipe,
    SourceTable,
    effective_dedup,
    tables_of,
)
from stages.chain import check_steps
from stages.dedup.inside.options import InsideTable
from stages.dedup.options import DedupTable
from stages.pii.options import check_phone_region
from stages.quality.code.language import languages
from stages.quality.judged_languages import check_languages, judges_any_language
from stages.quality.languages import label_hint, language_code
from stages.quality.options import check_one_each, check_tables, check_thresholds
from stages.reading.content_types import TYPES_OF
from stages.reading.options import (
    RowFields,
)
from stages.rights.options import check_rights
from stages.steps.catalogue import CATALOGUE, given_keys
from stages.steps.classifier import check_classifiers
from stages.steps.language import (
    EXTENSION,
    check_language_model,
    check_min_scores,
    known_labels,
    labels_at_hand,
)
from stages.steps.models.fasttext_model import BUNDLED
from stages.steps.url import UrlTable
from stages.steps.user.user_step import check_step_tables

MAX_SOURCES: Final = 1 << 9
MAX_FILES: Final = 1 << 22
"""Sources of a recipe, and input files of a source: a document's number while documents are compared
(`pipeline/dedup/inputs.py`) has room for no more."""

_MIME = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}/(?:[a-z0-9!#$&^_.+-]{1,127}|\*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8}){0,4}")


def checked(recipe: PipelineRecipe) -> PipelineRecipe:
    """The recipe itself, if its sources make sense; else RecipeError."""
    if not recipe.source:
        raise RecipeError("source: a data recipe needs at least one [[source]] with a name and inputs")
    if len(recipe.source) > MAX_SOURCES:
        raise RecipeError(
            f"source: {len(recipe.source):,} [[source]] tables, expected at most {MAX_SOURCES:,}: put files"
            " of one kind into one source, or make several runs joined by dedup.against"
        )
    for source in recipe.source:
        if not _NAME.fullmatch(source.name):
            raise RecipeError(
                f"source.name = {source.name!r}: expected letters, digits, '.', '-' or '_', at most 100"
            )
        if not source.inputs and not source.indexes:
            raise RecipeError(
                f"source.inputs of {source.name!r} is empty: name at least one file, glob or URL, or a"
                " source.index"
            )
        _check_index(source)
        _check_fields(source)
    for name, value in (("run.name", recipe.run.name), ("run.output", recipe.run.output)):
        if not value.strip():
            raise RecipeError(f"{name} is empty: give a name, and as output a folder or an s3:// URL")
    check_output(recipe.run.output)
    places = {"run.output": (recipe.run.output,), "dedup.against": recipe.dedup.against}
    places |= {"purges.honour": recipe.purges.honour}
    for source in recipe.source:
        places[f"source.inputs of {source.name!r}"] = source.inputs
        places[f"source.index of {source.name!r}"] = source.indexes
        places[f"source.root of {source.name!r}"] = (source.root or "",)
    for name, urls in places.items():
        for url in urls:
            if url.startswith("s3://") and "@" in url.removeprefix("s3://").partition("/")[0]:
                raise RecipeError(
                    f"{name} = {without_secrets(url)!r}: keys do not belong in an s3:// URL; set"
                    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                )
    names = [source.name for source in recipe.source]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise RecipeError(
            f"source.name = {repeated[0]!r} is given twice: each source needs a name of its own"
        )
    return recipe


def check_output(output: str) -> None:
    """RecipeError where a run cannot leave its output at this place."""
    try:
        cannot_be = is_remote(output) and not output.startswith("s3://")
    except RecipeError as error:
        raise RecipeError(f"run.output = {error}") from error
    if cannot_be:
        raise RecipeError(
            f"run.output = {without_secrets(output)!r}: an output lies on disk or in s3://; gs://, az:// and"
            " hf:// hold inputs and exports, https:// inputs"
        )
    if mark := not_for_tables(output):
        raise RecipeError(
            f"run.output = {without_secrets(output)!r}: lineage tables cannot lie there because of {mark!r}:"
            " name a place without it"
        )


def check_steps_of(recipe: PipelineRecipe) -> None:
    """RecipeError where a source's steps cannot be: their names and order, the classifiers' names, thresholds
    that the variant has no rule for or no page can meet, languages that the rules have no table for, texts
    without a language, a phone region that is none, keys that no source has the step for. No file is
    opened."""
    for source in recipe.source:
        check_steps(source.steps)
        if source.language is not None and "language" in source.steps:
            raise RecipeError(
                f"source.language of {source.name!r} is {source.language!r}, and its steps name 'language',"
                " which identifies each text's own: leave 'language' out of source.steps, or leave"
                " source.language out",
                "source.language",
            )
        if "quality" in source.steps and CATALOGUE["quality"].is_on(tables_of(recipe)):
            check_thresholds(recipe.quality)
            check_tables(recipe.quality)
            _check_language(source, recipe)
    _check_language_tables(recipe)
    check_min_scores(recipe.language)
    check_language_model(recipe.language)
    check_phone_region(recipe.pii)
    check_rights(recipe.rights)
    check_classifiers(recipe.classifier)
    check_step_tables(recipe.step, [source.steps for source in recipe.source])
    check_buckets(recipe)
    check_repeats(recipe)
    _check_are_read(recipe)
    _check_contradictions(recipe)


def _check_language(source: SourceTable, recipe: PipelineRecipe) -> None:
    """RecipeError where the quality rules would meet a text without a language, or one that they have no
    table for."""
    if "language" in source.steps:
        try:
            check_languages(recipe.quality, recipe.language.kept)
        except RecipeError:
            if recipe.language.model in (
                BUNDLED,
                EXTENSION,
            ):  # labels at hand: a lacking one is the nearer fault
                known_labels(recipe.language)
            raise
    elif source.language is not None:
        check_languages(recipe.quality, (source.language,), source.name)
    elif not judges_any_language(recipe.quality):
        before = source.steps[: source.steps.index("quality")]
        own = next((name for name in before if ":" in name), None)
        if own is not None and recipe.quality.no_table != "refuse":
            return  # it may name each document's language; what it names none for follows quality.no_table
        also = (
            f', or quality.no_table = "pass" or "reject" if {own} names each document\'s language'
            if own
            else ""
        )
        raise RecipeError(
            f"source.steps of {source.name!r} has no 'language', and quality.rules judge a text by its"
            f" language: add"
            f" 'language' to source.steps before 'quality', or name the language of all its texts, as in"
            f' source.language = "en"{also}',
            "source.language",
        )


def _check_language_tables(recipe: PipelineRecipe) -> None:
    """RecipeError for a table of one language, of [quality] or [repeat], whose language never comes, where it
    is known which ones do."""
    judged = [source for source in recipe.source if "quality" in source.steps]
    _check_names("quality.language", recipe.quality.language, judged, recipe)
    check_one_each("repeat.language has tables for", recipe.repeat.by_language)
    _check_names("repeat.language", recipe.repeat.by_language, recipe.source, recipe)


def _check_names(
    where: str, names: Iterable[str], sources: Sequence[SourceTable], recipe: PipelineRecipe
) -> None:
    """RecipeError for a name among those of the tables [`where`.NAME] that is no language's, or that of one in
    which no text of the sources comes."""
    for name in names:
        if not _LANGUAGE.fullmatch(name) and name not in languages():
            raise RecipeError(
                f"{where}.{name}: expected the label of a language, such as de or deu_Latn{label_hint(name)}",
                f"{where}.{name}",
            )
    if any(":" in step for source in sources for step in source.steps):
        return  # it may name any language
    are_told = any("language" in source.steps for source in sources)
    kept, of_model = recipe.language.kept, labels_at_hand(recipe.language)
    if are_told and not kept and of_model is None:
        return  # the model's labels are in its file
    given = [source.language for source in sources if source.language is not None]
    come = set(map(language_code, (*((kept or of_model or ()) if are_told else ()), *given)))
    for name in names:
        if language_code(name) in come:
            continue
        if are_told and not kept:
            lack = (
                f"language.model = {recipe.language.model!r} has no label for it: give another, or leave the table"
                " out"
            )
        else:
            lack = (
                f"language.keep and source.language name {', '.join(sorted(come)) or 'none'}: add it there, or"
                " leave the table out"
            )
        raise RecipeError(
            f"{where}.{name} is given{label_hint(name)}, and no text in that language comes: {lack}",
            f"{where}.{name}",
        )


def _check_are_read(recipe: PipelineRecipe) -> None:
    """RecipeError for a key that asks for something where no source has the step that does it."""
    named = {step for source in recipe.source for step in source.steps}
    tables = tables_of(recipe)
    for step, spec in CATALOGUE.items():
        for name, value in spec.asks.items():
            if step not in named and value(tables):
                raise RecipeError(
                    f"{name} is given, and no source.steps names {step!r}, which reads it: add the step to a"
                    " source, or leave the key out",
                    name,
                )


def unread_keys(recipe: PipelineRecipe) -> list[str]:
    """A sentence for each key that is given and that nothing of the run reads: it may have been meant."""
    named = {step for source in recipe.source for step in source.steps}
    tables = tables_of(recipe)
    told = [
        f"{name} is given, and no source.steps names {step!r}, which reads it: it decides nothing."
        for step, spec in CATALOGUE.items()
        if step not in named
        for name, is_given in spec.own_keys.items()
        if is_given(tables)
    ]
    dedup = recipe.dedup
    told += _unread_of_dedup(recipe)
    told += [
        f"{name} is given, and {spec.is_off_where}: it decides nothing."
        for step, spec in CATALOGUE.items()
        if step in named and spec.is_off_where and not spec.is_on(tables)
        for name, is_given in spec.own_keys.items()
        if is_given(tables)
    ]
    if recipe.tokenize.off:
        read = {
            key
            for spec in CATALOGUE.values()
            for key in spec.recipe_keys
            if key not in spec.leaves_out(tables)
        }
        told += [
            f"{name} is given, and with tokenize.off nothing is tokenized: it decides nothing."
            for name in given_keys("tokenize", recipe.tokenize, but=("off",))
            if name not in read
        ]
    told += [
        f"source.fragments of {source.name!r} is given, and no source.steps names 'dedup.url', which reads it: it"
        " decides nothing."
        for source in recipe.source
        if source.fragments and not effective_dedup(recipe).url
    ]
    if effective_dedup(recipe).near and not dedup.verify and dedup.threshold != DedupTable().threshold:
        told.append(
            f"dedup.threshold = {dedup.threshold:g} decides nothing: with dedup.verify = false documents that"
            " share a band are near-duplicates."
        )
    if recipe.url.min_soft_words != UrlTable().min_soft_words and not recipe.url.block_soft_words:
        told.append(
            f"url.min_soft_words = {recipe.url.min_soft_words} decides nothing: url.block_soft_words names no list."
        )
    return told


def _unread_of_dedup(recipe: PipelineRecipe) -> Iterator[str]:
    """A sentence for each key of [dedup] whose comparison no source names. One that the table itself switches off
    is not missed."""
    compared, table = effective_dedup(recipe), recipe.dedup
    if table.inside != InsideTable() and not table.inside.is_on:
        yield 'dedup.inside is given, and dedup.inside.method = "none": it decides nothing.'
    # Repeats are looked for without any comparison of documents: `keep` names the copy that stays.
    read_inside = {"keep", "engine"} if table.inside.is_on else set()
    for name in given_keys("dedup", table, but=("url", "exact", "near", "inside", *read_inside)):
        whole = name in ("dedup.keep", "dedup.engine", "dedup.against")
        readers = [
            each for each in (("url", "exact", "near") if whole else ("near",)) if getattr(table, each)
        ]
        if readers and not any(getattr(compared, each) for each in readers):
            steps = " or ".join(f"'dedup.{each}'" for each in readers)
            yield f"{name} is given, and no source.steps names {steps}, which reads it: it decides nothing."


def _check_contradictions(recipe: PipelineRecipe) -> None:
    """RecipeError for a key that another one of the recipe takes all meaning from."""
    for classifier in recipe.classifier:
        if not classifier.rejects and classifier.threshold is not None:
            raise RecipeError(
                f"classifier.threshold of {classifier.name!r} = {classifier.threshold:g}, and its reject ="
                ' "never" turns nothing down: leave the threshold out, or give reject = "above" or "below"',
                "classifier.threshold",
            )
    if recipe.pii.placeholders != "named" and (recipe.pii.action == "drop" or not recipe.pii.kinds):
        why = "pii.kinds are none" if not recipe.pii.kinds else 'pii.action = "drop" replaces nothing'
        raise RecipeError(
            f'pii.placeholders = "{recipe.pii.placeholders}", and {why}: leave one of them out',
            "pii.placeholders",
        )


def _check_index(source: SourceTable) -> None:
    """RecipeError where a source has an index and what does not go with one, or what goes only with one."""
    if not source.indexes:
        for name in ("where", "root", "sample"):
            if getattr(source, name) is not None:
                raise RecipeError(
                    f"source.{name} of {source.name!r} goes with source.index, which is not given",
                    f"source.{name}",
                )
        return
    if source.inputs:
        raise RecipeError(
            f"source.index and source.inputs of {source.name!r} are both given: the records of an index are read"
            " from the WARC files that it names; make two sources",
            "source.index",
        )
    if source.where is not None and not source.where.strip():
        raise RecipeError(
            f"source.where of {source.name!r} is empty: leave it out to select every record", "source.where"
        )
    if source.format not in ("auto", "warc"):
        raise RecipeError(
            f"source.format of {source.name!r} is {source.format!r}: an index names records of WARC files",
            "source.format",
        )
    if source.limit_documents is not None:
        raise RecipeError(
            f"source.limit_documents of {source.name!r} counts documents of a file read from its begin: with an"
            " index give limit, a number of records",
            "source.limit_documents",
        )
    if source.row_fields != RowFields():
        raise RecipeError(
            f"source.index of {source.name!r} names WARC records, which have no fields: text_field, id_field,"
            " url_field and date_field are for jsonl and parquet"
        )


def _check_fields(source: SourceTable) -> None:
    language = source.language
    if language is not None and not _LANGUAGE.fullmatch(language) and language not in languages():
        raise RecipeError(
            f"source.language of {source.name!r} = {source.language!r}: expected the label of a language,"
            f" such as de{label_hint(language)}",
            "source.language",
        )
    named = {
        "text_field": source.text_field,
        "id_field": source.id_field,
        "url_field": source.url_field,
        "date_field": source.date_field,
    }
    for name, field in named.items():
        if field is not None and not all(part.replace("[]", "") for part in field.split(".")):
            raise RecipeError(
                f"source.{name} of {source.name!r} = {field!r}: expected the name of a field, or names joined"
                " by dots, each with [] behind it where the elements of a list are meant"
            )
        lists = None if field is None else field.rpartition("[]")[0]
        if field is not None and lists and not f"{source.text_field}.".startswith(f"{lists}[]."):
            raise RecipeError(
                f"source.{name} of {source.name!r} = {field!r} goes into the elements of a list, and"
                f" text_field = {source.text_field!r} does not: expected a field of the row, or of elements"
                " that the text lies in"
            )
    if source.format in ("warc", "wet", *TYPES_OF) and source.row_fields != RowFields():
        raise RecipeError(
            f"source.format of {source.name!r} is {source.format!r}, whose records have no fields:"
            " text_field, id_field, url_field and date_field are for jsonl and parquet"
        )
    if source.format in ("jsonl", "parquet", *TYPES_OF) and source.mime:
        raise RecipeError(
            f"source.format of {source.name!r} is {source.format!r}, without types: mime is for warc"
        )
    for mime in source.mime:
        if not _MIME.fullmatch(mime):
            raise RecipeError(
                f"source.mime of {source.name!r} has {mime!r}: expected types in lower case without"
                " parameters, such as 'application/json' or 'text/*'"
            )
