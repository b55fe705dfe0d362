"""Run the data pipeline of a recipe: crawl files in, token shards and their lineage out.

Resumable: after a crash, a kill or Ctrl-C the same call continues and repeats no finished unit. After the
first document, a changed recipe or changed inputs are refused (exit code 2) and the message names the
difference; only [ray] may change.

Credentials in the URLs of a recipe (user:password@, presigned parameters, tokens) are never recorded in the
output, its lineage, a log or a message. They may come from variables named SLUICE_SECRET_…, before the @ or
after the ?:
  inputs = ["https://${SLUICE_SECRET_LOGIN}@host/a.warc.gz", "https://host/b.warc.gz?${SLUICE_SECRET_SIGNED}"]
A URL with a new signature is the same input. Credentials of object stores come from the
environment: AWS_*, AZURE_STORAGE_*, Google's default credentials, HF_TOKEN.

A record that cannot be read becomes a row of `unreadable`; a document on which a step raises is rejected by
the rule <step>.error. The run continues and lists each error with its traceback in the report. It fails (exit
code 1) if limits.max_bad_records is exceeded or no document is kept, and says why.

--from OUT starts from the texts that an earlier run kept after parse (run.keep_text = true). Unchanged steps
are not run again, and the output has the same bytes as a run from the inputs. Documents purged from OUT stay
out.

  sluice run recipes/crawl.toml
  sluice run recipes/crawl.toml --set run.output=s3://bucket/out --set 'source.0.limit=2'
  sluice run recipes/crawl.toml --try 20        the first 20 documents of each file, into a separate output
  sluice run recipes/crawl.toml --strict
  sluice run recipes/crawl.toml --set ray.address=none        in this process, without Ray, for small inputs
  sluice run recipes/crawl.toml --from out/crawl --set quality.min_words=80 --set run.output=out/stricter
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lineage.allocator import use_one_heap
from lineage.recipe import RecipeError
from pipeline.cli.arguments import add_json, add_recipe, count
from pipeline.cli.printing import console, print_json
from pipeline.phases.progress import ProgressReporter

if TYPE_CHECKING:
    from pipeline.recipe.tables import RayTable


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "sources, steps and the output")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop with a traceback at the first record on which a reader or step raises (damaged input does"
        " not raise: see limits.max_bad_records)",
    )
    parser.add_argument(
        "--from",
        dest="from_output",
        metavar="OUT",
        help="start from the texts that this finished output keeps (run.keep_text); read no input and parse no"
        " page again",
    )
    parser.add_argument(
        "--try",
        dest="num_documents",
        type=count,
        metavar="N",
        help="a trial: the first N documents of each input file (source.limit_documents), into a"
        " separate output, run.output plus -try; it replaces an earlier trial with other settings",
    )
    add_json(parser)


def engine_name(ray: RayTable) -> str:
    """Where the work is done, in words."""
    if ray.in_process:
        return f'in this process, without Ray (ray.address = "{ray.address}")'
    return "on a Ray that it starts" if ray.address == "local" else f'on the Ray at "{ray.address}"'


def _checked_trial(options: argparse.Namespace) -> int:
    """How many documents of each file a trial takes; RecipeError where it can be none."""
    if options.from_output is not None:
        raise RecipeError("--try goes without --from: it reads the first documents of the inputs")
    if options.num_documents == 0:
        raise RecipeError("--try 0: expected at least one document of each file")
    return int(options.num_documents)


def run(options: argparse.Namespace) -> int:
    use_one_heap()
    from pipeline.cli.corpus.summary import show_summary
    from pipeline.cli.errors import FailedError
    from pipeline.cli.without_pandas import leave_pandas_out
    from pipeline.recipe.checks import check_steps_of
    from pipeline.recipe.load import load, trial_of

    reporter = ProgressReporter()
    recipe = load(options.recipe, options.overrides)
    if options.num_documents is not None:
        recipe = trial_of(recipe, _checked_trial(options))
    reporter.say(
        f"{options.recipe}: checking the recipe and its inputs. The run works {engine_name(recipe.ray)}."
    )
    check_steps_of(recipe)
    has_own_code = any(":" in step for source in recipe.source for step in source.steps)
    if recipe.ray.in_process and not has_own_code:
        leave_pandas_out()

    from pipeline import process  # which a wrong recipe need not wait for

    summary = process.run(
        recipe,
        reporter,
        strict=options.strict,
        from_output=options.from_output,
        trial=options.num_documents is not None,
    )
    if options.json:
        print_json(summary.to_json())
    else:
        show_summary(console(), summary)
    if summary.nothing_kept:
        raise FailedError(f"{summary.output} is empty: {summary.nothing_kept}")
    return 0
