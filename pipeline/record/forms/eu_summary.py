"""The public summary of training content (AI Act, Article 53(1)(d)): Annex to C(2025) 8311 final of 5 December 2025,
its sections, labels and bins in its order and wording."""

from __future__ import annotations

from typing import Final

from pipeline.record.figures import LARGE, Row
from pipeline.record.forms.form import (
    Answer,
    Field,
    Form,
    FormFacts,
    Section,
    counted_sources,
    listed,
    month,
    period,
    yes_no,
)
from pipeline.record.forms.processing import cleaning, languages, removed, runs

BINS: Final = (
    (10**9, "Less than 1 billion tokens"),
    (10**13, "1 billion to 10 trillion tokens"),
    (None, "More than 10 trillion tokens"),
)
"""Section 1.3, of text: the size below which a range holds."""
_COMMENTS: Final = "Additional comments"


def size_bin(tokens: int) -> str:
    """The range of the form that a number of tokens falls in."""
    return next(name for limit, name in BINS if limit is None or tokens < limit)


def _size(facts: FormFacts) -> str:
    tokens, documents = facts.figures.value("tokens") or 0, facts.figures.value("documents") or 0
    lines = [f"{size_bin(tokens)} ({tokens:,} tokens of {documents:,} documents after pre-processing)"]
    if (read := facts.figures.value("read_tokens")) is not None:
        kept, kept_tokens = facts.figures.value("kept") or 0, facts.figures.value("kept_tokens") or 0
        lines += [
            f"The model has read all or a part of each of these documents, {read:,} tokens in all: what was read twice"
            " counts twice, what was not read counts nothing.",
            f"Pre-processing kept {kept_tokens:,} tokens of {kept:,} documents, read or not.",
        ]
    if purged := facts.figures.value("purged_and_read"):
        lines.append(f"{purged:,} of the documents were deleted since, and the model has still read them.")
    return "\n".join(lines)


def _latest(facts: FormFacts) -> str | None:
    return month(facts.figures.tables["period"][0]["last"])


def _public(facts: FormFacts, *, large: bool) -> list[Row]:
    rows = facts.of_kind("public")
    total = sum(row["tokens"] for row in rows)
    return [row for row in rows if (row["tokens"] > LARGE * total) == large]


def _large(facts: FormFacts) -> str | None:
    return counted_sources(_public(facts, large=True), facts)


def _small(facts: FormFacts) -> str | None:
    if not facts.of_kind("public"):
        return None
    return (
        counted_sources(_public(facts, large=False), facts) or "None: every public dataset is listed above."
    )


def _periods(*kinds: str) -> Answer:
    def answer(facts: FormFacts) -> str | None:
        rows = facts.of_kind(*kinds)
        found = [f"source {row['source']}: {period(row)}" for row in rows if period(row) is not None]
        return listed(found) if rows and len(found) == len(rows) else None

    return answer


def _text(*kinds: str) -> Answer:
    return lambda facts: "Text." if facts.of_kind(*kinds) else None


def _domains(facts: FormFacts) -> str | None:
    if not facts.figures.value("domains"):
        return "None: no document has an address with a registered domain."
    if facts.stated.small_provider is None:
        return None
    is_small = facts.stated.small_provider == "yes"
    top = facts.figures.top_domains(small=is_small)
    rule = "The lower of the top 5% and 1,000" if is_small else "The top 10%"
    head = (
        f"{rule} of the {facts.figures.value('domains'):,} domains of all sources together, by the size of the text"
        f" that was kept of each ({sum(row['bytes'] for row in top):,} bytes in all, UTF-8):"
    )
    return head + "\n" + listed([f"{row['domain']}: {row['bytes']:,} bytes" for row in top])


def _modality(name: str) -> Field:
    return Field(
        name=f"1.3.{name.lower()}",
        label=f"{name}: training data size; types of content",
        lineage=lambda facts: "Not applicable: the data hold text alone.",
    )


def _comments(section: str, kinds: tuple[str, ...] = ()) -> Field:
    question = "anything that a reader should know besides"
    name = f"{section}.comments"
    return Field(name=name, label=_COMMENTS, question=question, is_optional=True, kinds=kinds)


FORM: Final = Form(
    name="eu-summary",
    title="Template for the Public Summary of Training Content for General-Purpose AI models required by Article"
    " 53(1)(d) of Regulation (EU) 2024/1689 (AI Act)",
    sections=(
        Section(
            title="Version",
            fields=(
                Field(
                    name="version",
                    label="Version of the Summary",
                    question="its number, with links to earlier versions, or that there are none",
                ),
                Field(name="last_update", label="Last update", lineage=lambda facts: facts.as_of),
            ),
        ),
        Section(title="1. General information"),
        Section(
            title="1.1. Provider identification",
            depth=3,
            fields=(
                Field(
                    name="1.1.provider",
                    label="Provider name and contact details",
                    question="name, address, e-mail",
                ),
                Field(
                    name="1.1.representative",
                    label="Authorised representative name and contact details",
                    question="of a provider outside the Union (Article 54), or that none is needed",
                ),
            ),
        ),
        Section(
            title="1.2. Model identification",
            depth=3,
            fields=(
                Field(
                    name="1.2.model", label="Versioned model name(s)", question="each model that this covers"
                ),
                Field(
                    name="1.2.dependencies",
                    label="Model dependencies",
                    question="the model that this one was made from, with a link to its summary, or that there is none",
                    lineage=lambda facts: listed(list(facts.unknown)) if facts.unknown else None,
                ),
                Field(
                    name="1.2.placed",
                    label="Date of placement of the model on the Union market",
                    question="DD/MM/YYYY",
                ),
            ),
        ),
        Section(
            title="1.3. Modalities, overall training data size and other characteristics",
            depth=3,
            fields=(
                Field(name="1.3.text", label="Text: training data size", lineage=_size),
                Field(
                    name="1.3.types",
                    label="Text: types of content",
                    question="what texts they are: fiction, press, scientific, legal, source code, …",
                ),
                *map(_modality, ("Image", "Audio", "Video", "Other")),
                Field(
                    name="1.3.latest",
                    label="Latest date of data acquisition/collection for model training",
                    question="MM/YYYY; only where no date is printed here, since the records have none",
                    lineage=_latest,
                ),
                Field(
                    name="1.3.continuous",
                    label="Is the model continuously trained on new/dynamic data after this date?",
                    question="yes or no",
                ),
                Field(
                    name="1.3.languages",
                    label="Description of the linguistic characteristics of the overall training data",
                    lineage=lambda facts: languages(facts) or "None: no tokens are counted.",
                ),
                Field(
                    name="1.3.other",
                    label="Other relevant characteristics of the overall training data",
                    question="national, regional or demographic specificities, or that none are known",
                ),
                _comments("1.3"),
            ),
        ),
        Section(title="2. List of data sources"),
        Section(
            title="2.1. Publicly available datasets",
            depth=3,
            fields=(
                Field(
                    name="2.1.used",
                    label="Have you used publicly available datasets to train the model?",
                    lineage=yes_no(("public",)),
                ),
                Field(
                    name="2.1.modalities",
                    label="Modality(ies) of the content covered by the datasets concerned",
                    lineage=_text("public"),
                    kinds=("public",),
                ),
                Field(
                    name="2.1.large",
                    label="List of large publicly available datasets",
                    lineage=_large,
                    kinds=("public",),
                ),
                Field(
                    name="2.1.small",
                    label="General description of other publicly available datasets not listed above",
                    lineage=_small,
                    kinds=("public",),
                ),
                _comments("2.1", ("public",)),
            ),
        ),
        Section(title="2.2. Private non-publicly available datasets obtained from third parties", depth=3),
        Section(
            title="2.2.1. Datasets commercially licensed by rightsholders or their representatives",
            depth=4,
            fields=(
                Field(
                    name="2.2.1.licensed",
                    label="Have you concluded transactional commercial licensing agreement(s) with rightsholder(s) or"
                    " with their representatives?",
                    lineage=yes_no(("licensed",)),
                ),
                Field(
                    name="2.2.1.modalities",
                    label="Modality(ies) of the content covered by the datasets concerned",
                    lineage=_text("licensed"),
                    kinds=("licensed",),
                ),
            ),
        ),
        Section(
            title="2.2.2. Private datasets obtained from other third parties",
            depth=4,
            fields=(
                Field(
                    name="2.2.2.private",
                    label="Have you obtained private datasets from third parties that are not licensed as described in"
                    " Section 2.2.1?",
                    lineage=yes_no(("private",)),
                ),
                Field(
                    name="2.2.2.modalities",
                    label="Modality(ies) of the content covered by the datasets concerned",
                    lineage=_text("private"),
                    kinds=("private",),
                ),
                Field(
                    name="2.2.2.known",
                    label="List of private datasets that are publicly known",
                    question="names and links of those that the public knows, or that there are none",
                    kinds=("private",),
                ),
                Field(
                    name="2.2.2.description",
                    label="General description of non-publicly known private datasets obtained from third parties",
                    lineage=lambda facts: counted_sources(facts.of_kind("private"), facts),
                    kinds=("private",),
                ),
                _comments("2.2.2", ("private",)),
            ),
        ),
        Section(
            title="2.3. Data crawled and scraped from online sources",
            depth=3,
            fields=(
                Field(
                    name="2.3.crawled",
                    label="Were crawlers used by the provider or on its behalf?",
                    lineage=yes_no(("crawled",)),
                ),
                Field(
                    name="2.3.crawlers",
                    label="Crawler name(s)/identifier(s)",
                    question="user agents",
                    kinds=("crawled",),
                ),
                Field(
                    name="2.3.purposes",
                    label="Purposes of the crawler(s)",
                    question="what each is for",
                    kinds=("crawled",),
                ),
                Field(
                    name="2.3.behaviour",
                    label="General description of crawler behaviour",
                    question="robots.txt, captchas, paywalls, …",
                    kinds=("crawled",),
                ),
                Field(
                    name="2.3.period",
                    label="Period of data collection",
                    question="MM/YYYY to MM/YYYY; only where no period is printed here, since the records have none",
                    lineage=_periods("crawled"),
                    kinds=("crawled",),
                ),
                Field(
                    name="2.3.content",
                    label="Comprehensive description of the type of content and online sources crawled",
                    question="news, forums, public bodies, …",
                    lineage=lambda facts: counted_sources(facts.of_kind("crawled"), facts),
                    kinds=("crawled",),
                ),
                Field(
                    name="2.3.modalities",
                    label="Type of modality covered",
                    lineage=_text("crawled"),
                    kinds=("crawled",),
                ),
                Field(
                    name="2.3.domains",
                    label="Summary of the most relevant domain names crawled",
                    lineage=_domains,
                    needs="whether it is a small or medium-sized enterprise, which decides how many are listed",
                    kinds=("crawled",),
                ),
                _comments("2.3", ("crawled",)),
            ),
        ),
        Section(
            title="2.4. User data",
            depth=3,
            fields=(
                Field(
                    name="2.4.interaction",
                    label="Was data from user interactions with the AI model (e.g. user input and prompts) used to"
                    " train the model?",
                    lineage=yes_no(("interaction",)),
                ),
                Field(
                    name="2.4.services",
                    label="Was data collected from user interactions with the provider's other services or products"
                    " used to train the model?",
                    lineage=yes_no(("services",)),
                ),
                Field(
                    name="2.4.description",
                    label="General description of the provider's services or products that were used to collect the"
                    " user data",
                    question="their names, and what was taken",
                    kinds=("interaction", "services"),
                ),
                Field(
                    name="2.4.modalities",
                    label="Type of modality covered",
                    lineage=_text("interaction", "services"),
                    kinds=("interaction", "services"),
                ),
                _comments("2.4", ("interaction", "services")),
            ),
        ),
        Section(
            title="2.5. Synthetic data",
            depth=3,
            fields=(
                Field(
                    name="2.5.synthetic",
                    label="Was synthetic AI-generated data created by the provider or on its behalf to train the"
                    " model?",
                    lineage=yes_no(("synthetic",)),
                ),
                Field(
                    name="2.5.modalities",
                    label="Modality of the synthetic data",
                    lineage=_text("synthetic"),
                    kinds=("synthetic",),
                ),
                Field(
                    name="2.5.models",
                    label="General-purpose AI model(s) used to generate the synthetic data, if on the market",
                    question="names, with links to their summaries, or that none is on the market",
                    kinds=("synthetic",),
                ),
                Field(
                    name="2.5.other_models",
                    label="Information about other AI models used to generate synthetic data",
                    question="models of one's own among them, and on what they were trained, or that there are none",
                    kinds=("synthetic",),
                ),
                _comments("2.5", ("synthetic",)),
            ),
        ),
        Section(
            title="2.6. Other sources of data",
            depth=3,
            fields=(
                Field(
                    name="2.6.other",
                    label="Have data sources other than those described in Sections 2.1 to 2.5 been used to train the"
                    " model?",
                    lineage=yes_no(("other",)),
                ),
                Field(
                    name="2.6.description",
                    label="Narrative description of these data sources and the data",
                    question="what they are, and how the data was obtained",
                    lineage=lambda facts: counted_sources(facts.of_kind("other"), facts),
                    kinds=("other",),
                ),
                _comments("2.6", ("other",)),
            ),
        ),
        Section(title="3. Data processing aspects"),
        Section(
            title="3.1. Respect of reservation of rights from text and data mining exception or limitation",
            depth=3,
            fields=(
                Field(
                    name="3.1.signatory",
                    label="Are you a Signatory to the Code of Practice for general-purpose AI models that includes"
                    " commitments to respect reservations of rights from the TDM exception or limitation?",
                    question="yes or no",
                ),
                Field(
                    name="3.1.measures",
                    label="Describe the measures implemented before model training to respect reservations of rights"
                    " from the TDM exception or limitation before and during data collection",
                    question="opt-out protocols and solutions that were honoured, by you or by those who collected",
                ),
                _comments("3.1"),
            ),
        ),
        Section(
            title="3.2. Removal of illegal content",
            depth=3,
            fields=(
                Field(
                    name="3.2.measures",
                    label="General description of measures taken",
                    question="blacklists, keywords, classifiers against illegal content, or that there were none",
                    lineage=removed,
                ),
            ),
        ),
        Section(
            title="3.3. Other information (optional)",
            depth=3,
            fields=(
                Field(name="3.3.cleaning", label="Cleaning by step, and its purpose", lineage=cleaning),
                Field(name="3.3.runs", label="Training runs of which it is counted what they have read", lineage=runs),
                Field(
                    name="3.3.other",
                    label="Other relevant information about data processing aspects",
                    question="anything else",
                    is_optional=True,
                ),
            ),
        ),
    ),
)  # fmt: skip
