"""Jobs on a Ray cluster: start a submission or attach to the one that runs already, follow its log, stop
it."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pipeline.cluster.job_client import OUTPUT, BrokenLogError, ClusterError, ClusterJob, JobClient
from pipeline.jobs.submission import Submission, write_package

_POLL_SECONDS: Final = 1.0
_LOG_TRIES: Final = 30


def start(
    client: JobClient,
    submission: Submission,
    settings: Mapping[str, str],
    *,
    again: bool,
    before: Callable[[], None] = lambda: None,
) -> tuple[ClusterJob, bool]:
    """The submission's job, and whether it was there already. One that failed, was stopped or (with `again`)
    has finished is followed by a new one whose id ends in -2, -3, …; so is one that asked what an output held
    then. `before` is called before a new one is submitted."""
    tries = _tries(client, submission.id)
    if tries:
        newest = tries[max(tries)]
        if not newest.ended or (newest.status == "SUCCEEDED" and not again and not submission.is_of_now):
            return newest, True
    before()
    number = max(tries, default=0) + 1
    job_id = submission.id if number == 1 else f"{submission.id}-{number}"
    try:
        _submit(client, job_id, submission, settings)
    except ClusterError as error:
        if "already" not in str(error):
            raise
        return client.job(job_id), True  # another process submitted it in this moment
    return client.job(job_id), False


def _submit(client: JobClient, job_id: str, submission: Submission, settings: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-submit-") as folder:
        write_package(submission, settings, Path(folder))
        runtime_env = {
            "working_dir": folder,
            "worker_process_setup_hook": "pipeline.jobs.settings.take_settings",
            "env_vars": {"RAY_DEDUP_LOGS": "0"},
        }
        metadata = {"sluice": submission.id} | (
            {} if submission.output is None else {OUTPUT: submission.output}
        )
        client.submit(job_id, submission.entrypoint, runtime_env, metadata)


def _tries(client: JobClient, submission_id: str) -> dict[int, ClusterJob]:
    named = re.compile(re.escape(submission_id) + r"(?:-([0-9]+))?")
    found = ((named.fullmatch(job.id), job) for job in client.jobs())
    return {int(match[1] or 1): job for match, job in found if match}


def stop(client: JobClient, job_id: str) -> ClusterJob:
    """Stop a job, and wait until it has ended."""
    client.request_stop(job_id)
    while not (job := client.job(job_id)).ended:
        time.sleep(_POLL_SECONDS)
    return job


def follow(client: JobClient, job_id: str, write: Callable[[str], None]) -> ClusterJob:
    """Pass on what the job prints, from its first line, until it has ended. A lost connection is taken up
    again where it broke; ClusterError after half a minute without an answer."""
    passed, failures = 0, 0
    while True:
        try:
            passed = client.tail(job_id, passed, write)
            job = client.job(job_id)
            failures = 0
        except (ClusterError, BrokenLogError) as error:
            failures += 1
            if isinstance(error, BrokenLogError):
                passed = error.passed
            if failures >= _LOG_TRIES:
                raise ClusterError(f"lost sight of job {job_id}, which may still run: {error}") from error
        else:
            if job.ended:
                return job
        time.sleep(_POLL_SECONDS)
