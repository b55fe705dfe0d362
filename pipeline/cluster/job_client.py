"""A client of a cluster's job server: submit, list, inspect and stop jobs, read and follow their logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

OUTPUT: Final = "sluice_output"
"""The key of a job's metadata that names the place it writes to."""
SILENCE_SECONDS: Final = 60.0
"""After so long without a line a log is asked for anew: who only listens never hears that the other end, or
what keeps connections on the way there, has forgotten the connection."""
_ENDED: Final = ("SUCCEEDED", "FAILED", "STOPPED")


class ClusterError(RuntimeError):
    """The cluster does not answer, refuses us, or has no such job; the message says what to do."""


class BrokenLogError(Exception):
    """The log's connection broke after `passed` characters."""

    def __init__(self, passed: int, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.passed = passed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A job as the cluster describes it; `exit_code` is its command's, None while it runs or where it never
    ended. `started_at` is in UTC (ISO 8601), `seconds` counts from there to its end or to now; None before it
    starts. `output` is the place that it writes to, None where the submission did not say."""

    id: str
    status: str
    command: str
    message: str
    exit_code: int | None
    started_at: str | None = None
    seconds: float | None = None
    output: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    @property
    def code(self) -> int:
        """The exit code to pass on: the command's own, 1 for a job that was stopped or lost."""
        if self.status == "SUCCEEDED":
            return 0
        return self.exit_code if self.exit_code and self.exit_code > 0 else 1


def find_token(environment: Mapping[str, str], home: Path) -> str | None:
    """The cluster's token, from where Ray itself looks: RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH,
    ~/.ray/auth_token."""
    if token := environment.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else home / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError as error:
        if named:
            raise ClusterError(f"RAY_AUTH_TOKEN_PATH names {named}, which is not there") from error
        return None


class JobClient:
    """The job server at `address` (http://HOST:8265). ClusterError where it does not let us in."""

    def __init__(self, address: str, token: str | None, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._address = address.rstrip("/")
        self._silence_seconds = silence_seconds
        # Ray lets these override the address that it is given; what the user typed decides here.
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            os.environ.pop(name, None)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        from ray.job_submission import JobSubmissionClient

        # Ray logs each upload and each closed log stream.
        for module in (
            "dashboard.modules.job.sdk",
            "dashboard.modules.dashboard_sdk",
            "_private.runtime_env.packaging",
        ):
            logging.getLogger(f"ray.{module}").setLevel(logging.WARNING)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        with self._errors():
            self._client = JobSubmissionClient(self._address, headers=headers)

    def submit(
        self, job_id: str, entrypoint: str, runtime_env: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> None:
        """Upload what `runtime_env` names and start the job. ClusterError where the cluster has that id
        already."""
        with self._errors():
            self._client.submit_job(
                entrypoint=entrypoint,
                submission_id=job_id,
                runtime_env=dict(runtime_env),
                metadata=dict(metadata),
            )

    def jobs(self) -> list[ClusterJob]:
        """Every submitted job that the cluster remembers, oldest first."""
        with self._errors():
            found = [details for details in self._client.list_jobs() if details.submission_id]
        return [_job(details) for details in sorted(found, key=lambda details: details.start_time or 0)]

    def job(self, job_id: str) -> ClusterJob:
        """One job; ClusterError if the cluster has none of that id."""
        with self._errors(job_id):
            return _job(self._client.get_job_info(job_id))

    def request_stop(self, job_id: str) -> None:
        """Stop a job."""
        with self._errors(job_id):
            self._client.stop_job(job_id)

    def logs(self, job_id: str) -> str:
        """What a job has printed so far."""
        with self._errors(job_id):
            return str(self._client.get_job_logs(job_id))

    def tail(self, job_id: str, skip: int, write: Callable[[str], None]) -> int:
        """Pass on the log from character `skip` until the server closes it, or is silent for so long that a cut
        line may have swallowed the end; the number of characters passed on in all. BrokenLogError where the
        connection is lost."""
        return asyncio.run(self._tail(job_id, skip, write))

    async def _tail(self, job_id: str, skip: int, write: Callable[[str], None]) -> int:
        import aiohttp

        seen = 0
        try:
            async with contextlib.aclosing(self._client.tail_job_logs(job_id)) as chunks:
                while True:
                    async with asyncio.timeout(self._silence_seconds):
                        chunk = await anext(chunks)
                    seen += len(chunk)
                    fresh = seen - skip
                    if fresh > 0:
                        write(chunk[-fresh:])
                        skip = seen
        except (StopAsyncIteration, TimeoutError):
            return max(skip, seen)
        except (aiohttp.ClientError, RuntimeError) as error:
            raise BrokenLogError(skip, error) from error

    @contextlib.contextmanager
    def _errors(self, job_id: str = "") -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise ClusterError(
                f"{self._address} refuses the request: its token is missing (401) or wrong (403). Put the"
                " cluster's token into RAY_AUTH_TOKEN, or into a file named by RAY_AUTH_TOKEN_PATH."
                f" ({_first_line(error)})"
            ) from error
        except OSError as error:  # the client's own errors of connection and HTTP are such
            raise ClusterError(
                f"no Ray cluster answers at {self._address}: is it up, and is this the address of its"
                f" dashboard (http://HOST:8265, or a forwarded port)? ({_first_line(error)})"
            ) from error
        except RuntimeError as error:
            if job_id and "404" in str(error):
                raise ClusterError(
                    f"{self._address} has no job {job_id!r}: `sluice jobs` lists them"
                ) from error
            raise ClusterError(f"{self._address}: {error}") from error


def _job(details: Any) -> ClusterJob:
    command = str(details.entrypoint or "").replace("python -m pipeline.on_cluster", "sluice", 1)
    return ClusterJob(
        id=details.submission_id,
        status=str(getattr(details.status, "value", details.status)),
        command=command,
        message=str(details.message or ""),
        exit_code=details.driver_exit_code,
        started_at=_utc(details.start_time),
        seconds=_seconds(details.start_time, details.end_time),
        output=(details.metadata or {}).get(OUTPUT),
    )


def _utc(milliseconds: int | None) -> str | None:
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(start: int | None, end: int | None) -> float | None:
    """From the cluster's clock; of a job that runs, to this machine's time."""
    return max((end or time.time() * 1000) - start, 0.0) / 1000 if start else None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
