"""The certificate of a checkpoint: that nothing of what purges took is in its weights, and what that does not
cover.

  purges      which documents (a digest of their ids, no text), how often the run read them, how many readings count
  chain       the attempts from the first step to the checkpoint: parent, steps, contents, recipe, layout, versions
  weights     a digest of weights and moments that does not hang on the layout (`checkpoint/digest.py`)
  not_covered what else may hold the documents, as far as anything that is recorded tells

Everything is found in the run's output and the stores of the outputs that it read. The last line is a
checksum of the bytes before it, against damage; against a certificate that lies there is `check.py`, which
finds everything again."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from lineage.ids import SET_CONTEXT, content_hash, set_digest
from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import shown_place
from lineage.store.lookup import Lookup
from lineage.trace.exposure import TrainingRun
from trainer.attempts import Attempt, attempts
from trainer.checkpoint.digest import weights_digest
from trainer.checkpoint.store import (
    COMPLETE,
    DAMAGED,
    SET_ASIDE,
    Checkpoint,
    check_files,
    checkpoints_set_aside,
    damaged_checkpoints,
    read_position,
)
from trainer.evidence.certificate_file import FORMAT, CertificateError, Json, as_bytes
from trainer.huggingface.exported import exported_checkpoints
from trainer.huggingface.model_card import checkpoints_of, read_card
from trainer.order import OrderPlan
from trainer.provenance.facts import (
    FACTS_FILE,
    Fact,
    FactLog,
    SegmentFact,
    StartFact,
    owner_of,
    recorded_places,
    segment_row,
)
from trainer.provenance.setup import Origin, Setup, read_setup
from trainer.recovery.readings import PurgedOutput, as_of, find_purges, readings
from trainer.recovery.rollbacks import rollbacks
from trainer.recovery.same_recipe import changed_since


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A checkpoint of a run, and what it is certified of."""

    output: Folder
    run: str
    checkpoints: Folder
    checkpoint: Checkpoint
    purged: tuple[PurgedOutput, ...]

    @property
    def folder(self) -> Folder:
        """The checkpoint's folder."""
        return self.checkpoints.folder(self.checkpoint.name)

    @property
    def read(self) -> str:
        """What is read of it, for people: folders, and where links lead."""
        outs = " and ".join(shown_place(each.out) for each in self.purged)
        return f"{shown_place(self.folder)}, and the purges of {outs}"

    @property
    def begun(self) -> tuple[Attempt, ...]:
        return attempts(self.output)


def open_certified(
    output: Folder, wanted: Sequence[str], outs: Sequence[str] = (), checkpoint: str | None = None
) -> Certified:
    """The newest checkpoint of a run, or the one of that name, and these purges (or `all`) of the outputs
    that it read, or of `outs`. RecipeError where it is no run's output, has no checkpoint, or no such purge
    is recorded."""
    run = owner_of(output)
    if run is None:
        raise RecipeError(f"{output.url} is not the output of a training run (train.output) of this release")
    folder = Folder(read_card(output).checkpoints)
    found = checkpoints_of(output)
    chosen = [entry for entry in found if checkpoint in (None, entry.name)]
    if not chosen:
        named = "checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
        raise RecipeError(f"{output.url} has no {named} in {folder.url} that is part of the run")
    read = outs or outs_read(output)
    if not read:
        raise RecipeError(
            f"{output.at(FACTS_FILE)} says nothing of what the run read: it is damaged, or was replaced"
        )
    purged = tuple(find_purges(read, wanted))
    if not purged:
        raise RecipeError(f"no purge is recorded in {', '.join(read)}: there is nothing to certify")
    return Certified(output=output, run=run, checkpoints=folder, checkpoint=chosen[-1], purged=purged)


def outs_read(output: Folder) -> list[str]:
    """Every output of the data pipeline that the run read, by its own facts."""
    return list(
        dict.fromkeys(fact.out for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact))
    )


def make_certificate(certified: Certified) -> Json:
    """What is found, without its date. CheckpointError where a file of the checkpoint is damaged,
    CertificateError where what is recorded of the run contradicts itself, or readings are applied."""
    folder = certified.folder
    if problems := contradictions(certified):
        raise CertificateError(f"{certified.output.url} cannot be certified: {problems[0]}")
    row = records(certified)
    for purge in row["purges"]:
        if purge["applied"]:
            raise CertificateError(
                f"{certified.checkpoint.name} cannot be certified: it read documents of purge"
                f" {purge['purge_id']} {purge['applied']} times, first in step {purge['first_step']}; sluice"
                f" train RECIPE --forget {purge['purge_id']} does the steps since again"
            )
    check_files(folder)
    return row | {"weights": dataclasses.asdict(weights_digest(folder))}


def records(certified: Certified) -> Json:
    """The certificate but for the weights: what records say, as they are now."""
    folder = certified.folder
    position = read_position(folder)
    chain = chain_of(certified.output, certified.checkpoint)
    row: Json = {
        "format": FORMAT,
        "run": certified.run,
        "output": certified.output.url,
        "checkpoint": {
            "name": certified.checkpoint.name,
            "step": position.step,
            "attempt": position.attempt,
            "order_version": position.order_version,
            "plan_fingerprint": position.plan_fingerprint,
            "files_digest": content_hash(folder.read(COMPLETE)).hex(),
        },
        "documents_digest_method": f"BLAKE3 over the sorted 16-byte ids, key derived from {SET_CONTEXT!r}",
        "purges": list(_purges(certified)),
        "chain": chain,
        "init_from": _init_from(certified),
        "not_covered": list(_not_covered(certified)),
        "inexact": inexact(chain),
    }
    return cast(Json, json.loads(json.dumps(row)))  # as it is read again: lists and no tuples


def certificate_name(checkpoint: Checkpoint) -> str:
    """Where a run's output keeps the certificate of a checkpoint that ended a replay."""
    return f"certificates/{checkpoint.name}.json"


def certify_replay(output: Folder, purges: Sequence[str]) -> tuple[str, Json]:
    """Write the certificate of a run's newest checkpoint into its output; gives its name there and what
    stands in it. Errors as of `open_certified` and `make_certificate`."""
    certified = open_certified(output, purges)
    name = certificate_name(certified.checkpoint)
    return name, publish_certificate(output, name, make_certificate(certified))


def publish_certificate(to: Folder, name: str, row: Json) -> Json:
    """Write a certificate, with its date and its checksum; gives what stands in it."""
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    whole = {"at": at, **row}
    to.publish(name, as_bytes(whole))
    return whole


def line_of(begun: Sequence[Attempt], checkpoint: Checkpoint) -> list[tuple[Attempt, int]]:
    """The attempts that lead to a checkpoint, the first one first, each with the step up to which it
    counts."""
    known = {each.number: each for each in begun}
    end, number = checkpoint.step, checkpoint.attempt
    line: list[tuple[Attempt, int]] = []
    while number in known:
        attempt = known[number]
        line.append((attempt, end))
        if attempt.parent is None or attempt.parent >= number:
            break
        end, number = attempt.first_step, attempt.parent
    return line[::-1]


def contradictions(certified: Certified) -> list[str]:
    """Where the records of the run, or of one with whose weights it began, contradict each other: a chain
    that does not begin at step 0, a parent that is another one by the facts, weights to begin with that are
    others by the facts."""
    problems = _contradictions(certified.output, certified.run, certified.checkpoint, certified.purged)
    position = read_position(certified.folder)
    for purged in certified.purged:
        for plan in [
            OrderPlan.from_json(run.plan) for run in _runs(purged, certified) if run.run == certified.run
        ]:
            found = plan.fingerprint(position.step * plan.global_batch)
            if found != position.plan_fingerprint:
                problems.append(
                    f"{certified.checkpoint.name} was saved in the order {position.plan_fingerprint} by its"
                    f" own record, and the run has the order {found} by its facts"
                )
    for link in _links(certified):
        if link.made_by is not None:
            output, run, checkpoint = link.made_by
            of_link = _contradictions(output, run, checkpoint, certified.purged)
            problems += [f"{output.url}, with whose weights it began: {problem}" for problem in of_link]
    return problems


def _contradictions(
    output: Folder, run: str, checkpoint: Checkpoint, purged: Sequence[PurgedOutput]
) -> list[str]:
    line, problems = line_of(attempts(output), checkpoint), []
    if not line or line[0][0].first_step != 0 or line[0][0].parent is not None:
        missing = line[0][0].parent if line else checkpoint.attempt
        problems.append(f"the chain of checkpoints does not reach step 0: attempt {missing} is not recorded")
    told = _told_of(output, run, purged)
    starts = _starts(output)
    asked = {rollback.number: (rollback.step, rollback.parent) for rollback in rollbacks(output)}
    ends = {attempt.number: end for attempt, end in line}
    problems += [
        problem for each in purged if (problem := _told_otherwise(output, run, each, ends)) is not None
    ]
    for attempt, end in line:
        back = None if attempt.rollback is None else asked.get(attempt.rollback)
        # Where the checkpoint that was asked for is damaged, it goes back further.
        further = back is not None and attempt.damaged and attempt.first_step < back[0]
        if attempt.rollback is not None and back != (attempt.first_step, attempt.parent) and not further:
            problems.append(
                f"attempt {attempt.number} went back to step {attempt.first_step} of attempt {attempt.parent} by its"
                f" own record, and rollback {attempt.rollback} asks for another step, or is not recorded"
            )
        for where, parent, first_step in told.get(attempt.number, ()):
            if (parent, first_step) != (attempt.parent, attempt.first_step):
                problems.append(
                    f"attempt {attempt.number} began from attempt {attempt.parent} at step"
                    f" {attempt.first_step} by its"
                    f" own record, and from attempt {parent} at step {first_step} by {where}"
                )
        if attempt.number not in told and end > attempt.first_step:
            problems.append(f"attempt {attempt.number} has no facts: what it read is not known")
        setup, start = read_setup(output, attempt.number), starts.get(attempt.number)
        ours = None if setup is None else (setup.recipe_hash, *_named(setup.origin))
        theirs = None if start is None else (start.recipe_hash, start.init_from, start.init_digest)
        if ours != theirs:
            problems.append(
                f"attempt {attempt.number} was set up with (recipe, init_from, digest) = {ours} by its own"
                f" record, and with {theirs} by its facts"
            )
    return problems


def _told_otherwise(output: Folder, run: str, purged: PurgedOutput, ends: Mapping[int, int]) -> str | None:
    """A fact that the store of the data took from the run's output, and that stands otherwise there now.

    The original of a copy may have added facts since; then the copy's own must reach its checkpoint."""
    facts = dict(FactLog(output).facts())
    is_elsewhere = output.url not in recorded_places(output)
    for row in Lookup(purged.out).segments():
        if row.run == run and row.fact is not None:
            reached = _reached(facts.values(), row.attempt)
            if is_elsewhere and row.fact >= len(facts) and reached >= ends.get(row.attempt, 0):
                continue
            fact = facts.get(row.fact)
            ours = segment_row(row.fact, fact) if isinstance(fact, SegmentFact) else {}
            differing = [name for name in _COMPARED if ours.get(name) != getattr(row, name)]
            if differing:
                found = "; ".join(
                    f"{name} {getattr(row, name)!r}, there {ours.get(name)!r}" for name in differing
                )
                return (
                    f"the store of {purged.out.url} took facts from {output.at(FACTS_FILE)} that stand there"
                    f" otherwise now: of attempt {row.attempt} from step {row.first_step} on {found}"
                )
    return None


def _reached(facts: Iterable[Fact], attempt: int) -> int:
    """The steps that an attempt had done by its facts."""
    of_it = (fact for fact in facts if isinstance(fact, SegmentFact) and fact.attempt == attempt)
    return max((fact.last_step + 1 for fact in of_it), default=0)


_COMPARED: Final = ("attempt", "first_step", "last_step", "content_fingerprint", "weights", "skipped_steps")
"""What decides which rows a stretch read, and whether they count."""


def _named(origin: Origin | None) -> tuple[str | None, str | None]:
    return (None, None) if origin is None else (origin.url, origin.digest)


def _starts(output: Folder) -> dict[int, StartFact]:
    return {fact.attempt: fact for _, fact in FactLog(output).facts() if isinstance(fact, StartFact)}


def _told_of(
    output: Folder, name: str, purged: Sequence[PurgedOutput]
) -> dict[int, list[tuple[str, int | None, int]]]:
    """(where, parent, first step) of each attempt, by the facts in the output and by each store."""
    told: dict[int, dict[str, tuple[int | None, int]]] = {}

    def note(where: str, attempt: int, parent: int | None, first_step: int) -> None:
        known = told.setdefault(attempt, {}).get(where)
        told[attempt][where] = (parent, first_step if known is None else min(known[1], first_step))

    for _, fact in FactLog(output).facts():
        if isinstance(fact, SegmentFact):
            note("the facts in its output", fact.attempt, fact.parent_attempt, fact.first_step)
    for each in purged:
        for run in each.runs():
            if run.run == name:
                for segment in run.segments:
                    note(
                        f"the store of {each.out.url}",
                        segment.attempt,
                        segment.parent_attempt,
                        segment.first_step,
                    )
    return {attempt: [(where, *row) for where, row in found.items()] for attempt, found in told.items()}


def chain_of(output: Folder, checkpoint: Checkpoint) -> list[Json]:
    """The attempts that lead to a checkpoint: what each read, and how it was set up (None: not recorded).
    `recipe_changes`: what its recipe does otherwise than that of the attempt before it, a line each."""
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    chain: list[Json] = []
    for attempt, end in line_of(attempts(output), checkpoint):
        newest = {
            (f.first_step, f.out): f for f in facts if f.attempt == attempt.number and f.first_step < end
        }
        setup = read_setup(output, attempt.number)
        chain.append(
            {
                "attempt": attempt.number,
                "parent": attempt.parent,
                "rollback": attempt.rollback,
                "first_step": attempt.first_step,
                "end_step": end,
                "contents": [
                    {"out": out, "first_step": first, "content_fingerprint": fact.content_fingerprint}
                    for (first, out), fact in sorted(newest.items())
                ],
                "recipe_changes": changed_since(output, chain[-1]["attempt"], attempt.number)
                if chain
                else [],
                **(_unknown_setup() if setup is None else _setup(setup)),
            }
        )
    return chain


def _setup(setup: Setup) -> Json:
    names = ("recipe_hash", "seed", "layout", "device", "versions")
    return {name: getattr(setup, name) for name in names}


def _unknown_setup() -> Json:
    return dict.fromkeys(("recipe_hash", "seed", "layout", "device", "versions"))


def _runs(purged: PurgedOutput, certified: Certified) -> list[TrainingRun]:
    return purged.runs([certified.output.url])


def _purges(certified: Certified) -> Iterator[Json]:
    for purged in certified.purged:
        for purge in purged.purges:
            one = PurgedOutput(out=purged.out, purges=(purge,))
            num, applied, first = 0, 0, None
            for run in _runs(one, certified):
                if run.run == certified.run:
                    found = [exposure for _, exposure in readings(run, one)]
                    here = _as_certified(run, certified)
                    applied += sum(exposure.applied for _, exposure in readings(here, one))
                    num += len(found)
                    first = min((exposure.step for exposure in found), default=first)
            yield {
                "out": purged.out.url,
                "purge_id": purge.purge_id,
                "at": purge.at,
                "num_documents": len(one.doc_ids),
                "documents_digest": set_digest(one.doc_ids),
                "content_fingerprint_after": purge.content_fingerprint_after,
                "readings": num,
                "first_step": first,
                "applied": applied,
            }


def _as_certified(run: TrainingRun, certified: Certified) -> TrainingRun:
    return as_of(run, certified.begun, certified.checkpoint.attempt, certified.checkpoint.step)


def _first_setup(output: Folder, begun: Sequence[Attempt], attempt: int) -> tuple[Setup | None, int | None]:
    """The setup of the attempt that the line to `attempt` began with, and its number."""
    known = {each.number: each for each in begun}
    while attempt in known and (parent := known[attempt].parent) is not None and parent < attempt:
        attempt = parent
    return read_setup(output, attempt), attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """Weights that a run began with. `made_by`: the output, name and checkpoint of the run that made them,
    where it is there; `why_unknown`: why that, or what that run began with, cannot be known."""

    origin: Origin
    made_by: tuple[Folder, str, Checkpoint] | None = None
    why_unknown: str | None = None


def _links(certified: Certified) -> Iterator[_Link]:
    """The weights that the run began with, and those that their run began with, as far as that is
    recorded."""
    setup, _ = _first_setup(certified.output, certified.begun, certified.checkpoint.attempt)
    origin = None if setup is None else setup.origin
    seen: set[tuple[str, int | None]] = set()
    while origin is not None:
        key = (origin.url, origin.attempt)
        if origin.output is None or origin.step is None or origin.attempt is None or key in seen:
            yield _Link(origin=origin, why_unknown="the folder does not say which run made it")
            return
        seen.add(key)
        theirs = Folder(origin.output)
        begun = attempts(theirs)
        if origin.run is None or not begun or owner_of(theirs) != origin.run:
            why = f"{origin.output} is there no more, or holds another run"
            yield _Link(origin=origin, why_unknown=why)
            return
        setup, _ = _first_setup(theirs, begun, origin.attempt)
        unknown = None if setup is not None else f"what {origin.output} began with is not recorded"
        made = Checkpoint(name=origin.url, step=origin.step, attempt=origin.attempt)
        yield _Link(origin=origin, made_by=(theirs, origin.run, made), why_unknown=unknown)
        origin = None if setup is None else setup.origin


def _init_from(certified: Certified) -> list[Json]:
    """Each of `_links`, with how many readings of what was purged are in it, None where that cannot be
    known."""
    links: list[Json] = []
    for link in _links(certified):
        num = None
        if link.made_by is not None:
            output, name, made = link.made_by
            num = sum(
                exposure.applied
                for purged in certified.purged
                for run in purged.runs([output.url])
                if run.run == name
                for _, exposure in readings(as_of(run, attempts(output), made.attempt, made.step), purged)
            )
        links.append({**dataclasses.asdict(link.origin), "readings": num, "why_unknown": link.why_unknown})
    return links


def _not_covered(certified: Certified) -> Iterator[Json]:
    """What else may hold the documents, each with its kind: found in records, or said to be recorded
    nowhere."""
    setup, first = _first_setup(certified.output, certified.begun, certified.checkpoint.attempt)
    if setup is None:
        yield _gap(
            "init_from", f"attempt {first}", "of an earlier release, which did not record what it began with"
        )
    for link in _init_from(certified):
        if link["readings"]:
            yield _gap(
                "init_from",
                link["url"],
                f"the run began with its weights, which read it {link['readings']} times",
            )
        elif link["why_unknown"]:
            yield _gap("init_from", link["url"], link["why_unknown"])
    for purged in certified.purged:
        yield from _in_output(purged)
        for run in purged.runs([certified.output.url]):
            applied = sum(exposure.applied for _, exposure in readings(run, purged))
            if run.run != certified.run and applied:
                kind = "ablation" if run.run.startswith(f"{certified.run}/") else "other run"
                yield _gap(kind, run.run, f"in {run.output}; it read it {applied} times")
            if run.run == certified.run:
                yield from _in_run(run, purged, certified)
            else:
                yield from _begun_from_it(run, purged, certified)
    yield from _set_aside(certified)


def _in_output(purged: PurgedOutput) -> Iterator[Json]:
    """What the data itself was made with."""
    tokenizer = read_index(purged.out).tokenizer
    yield _gap(
        "tokenizer", f"{tokenizer.name} ({tokenizer.hash})", "which texts it was trained on is not recorded"
    )
    if purged.out.exists("recipe.toml"):
        import tomllib

        recipe = tomllib.loads(purged.out.read("recipe.toml").decode())
        for table in recipe.get("classifier", ()):
            yield _gap("classifier", str(table.get("model")), "which texts it was trained on is not recorded")


def _in_run(run: TrainingRun, purged: PurgedOutput, certified: Certified) -> Iterator[Json]:
    """Copies of the run's earlier checkpoints, and the steps of attempts that are undone."""
    for exported in exported_checkpoints(certified.output):
        there = as_of(run, certified.begun, exported.attempt, exported.step)
        if num := sum(exposure.applied for _, exposure in readings(there, purged)):
            what = f"checkpoint of step {exported.step}, exported {exported.at}; it read it {num} times"
            yield _gap("export", exported.place, what)
    undone: dict[int, int] = {}
    for _, exposure in readings(run, purged):
        if not exposure.applied:
            undone[exposure.attempt] = undone.get(exposure.attempt, 0) + 1
    for attempt, num in sorted(undone.items()):
        yield _gap("undone steps", f"attempt {attempt}", f"it read it {num} times; its metrics and logs stay")


def _begun_from_it(run: TrainingRun, purged: PurgedOutput, certified: Certified) -> Iterator[Json]:
    """Another run that began with a checkpoint of this one which had read the documents."""
    try:
        begun = attempts(Folder(run.output))
        setup = read_setup(Folder(run.output), begun[0].number) if begun else None
    except (OSError, RecipeError) as error:
        yield _gap(
            "begun from it", run.run, f"whether it was is unknown: {run.output} cannot be read ({error})"
        )
        return
    origin = None if setup is None else setup.origin
    if origin is None or origin.run != certified.run or origin.step is None or origin.attempt is None:
        return
    for own in purged.runs([certified.output.url]):
        if own.run == certified.run:
            there = as_of(own, certified.begun, origin.attempt, origin.step)
            if num := sum(exposure.applied for _, exposure in readings(there, purged)):
                why = f"it began with this run's checkpoint of step {origin.step}, which read it {num} times"
                yield _gap("begun from it", run.run, why)


def _set_aside(certified: Certified) -> Iterator[Json]:
    for entry in checkpoints_set_aside(certified.checkpoints):
        why = "a checkpoint of steps that were undone, and that the run has not done again"
        yield _gap("set aside", f"{SET_ASIDE}/{entry.name}", why)
    for entry in damaged_checkpoints(certified.checkpoints):
        why = "a damaged checkpoint of steps that were undone; it is never deleted by the run"
        yield _gap("damaged", f"{DAMAGED}/{entry.name}", why)


def _gap(kind: str, what: str, why: str) -> Json:
    return {"kind": kind, "what": what, "why": why}


def inexact(chain: Sequence[Json]) -> list[str]:
    """Why the weights that chains of attempts lead to may differ in their last bits from those of a run that
    never read the documents."""
    known = [link for link in chain if link["layout"] is not None]
    reasons = []
    if len(known) < len(chain):
        reasons.append("the layout of attempts of an earlier release is not recorded")
    if any(link["layout"] != known[0]["layout"] for link in known):
        reasons.append("attempts had different layouts, which add in another order")
    changes = dict.fromkeys(change for link in chain for change in link["recipe_changes"] or ())
    if changes:
        reasons.append(f"the recipe changed on the way: {'; '.join(changes)}")
    if any(link["versions"] != known[0]["versions"] for link in known):
        reasons.append("attempts ran on different versions of the libraries")
    if any(link["device"] != "cpu" for link in known):
        reasons.append("on a GPU some kernels add in an order that differs from run to run")
    return reasons
