"""OpenLineage events of runs, purges and training attempts, by OpenLineage's own client.

Events are sent only where the client is configured, by its own environment variables or file: OPENLINEAGE_URL,
OPENLINEAGE_CONFIG or OPENLINEAGE__TRANSPORT__…. An error of an event never stops the job: the first one is a line on
stderr, and this job sends no more events. Names of datasets follow OpenLineage's naming rules
(openlineage.io/docs/spec/naming): a namespace of scheme and authority, and the path."""

from __future__ import annotations

import logging
import os
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from lineage.secrets import without_secrets
from lineage.storage.folder import is_remote, local_path

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet, RunFacet

_Facet = TypeVar("_Facet")

JobKind = Literal["run", "purge", "training"]
_CONFIGURED_BY: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_PREFIX: Final = "OPENLINEAGE__TRANSPORT"
_NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDataset:
    """What a job reads or writes: a folder or file, by path or URL; `version`: a fingerprint of its content. None
    where a figure is not known."""

    url: str
    version: str | None = None
    num_rows: int | None = None
    num_bytes: int | None = None
    num_files: int | None = None


@dataclass(slots=True, kw_only=True)
class JobFacts:
    """A job of one name and what it reads. What it writes, and its `tags`, may be set until it ends."""

    kind: JobKind
    name: str
    inputs: Sequence[EventDataset]
    outputs: Sequence[EventDataset] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def job_events(facts: JobFacts) -> Iterator[JobFacts]:
    """START now, and at the end COMPLETE, FAIL with the error, or ABORT where the process is asked to end."""
    sender = _sender(facts)
    if sender is None:
        yield facts
        return
    sender.send("START")
    try:
        yield facts
    except (KeyboardInterrupt, SystemExit):
        sender.send("ABORT")
        raise
    except BaseException as error:
        sender.send("FAIL", error)
        raise
    else:
        sender.send("COMPLETE")
    finally:
        sender.close()


def common_folder(urls: Sequence[str]) -> str:
    """The longest folder that holds all of `urls`; the file where there is one alone."""
    if len(set(urls)) == 1:
        return urls[0]
    # Character by character, then back to a slash: `commonpath` would take a scheme's two slashes for one.
    return posixpath.commonprefix(list(urls)).rpartition("/")[0]


def dataset_name(url: str) -> tuple[str, str]:
    """Namespace and name, without credentials."""
    if not is_remote(url):
        return "file", os.path.abspath(local_path(url))
    parts = urlsplit(without_secrets(url))
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"


def _sender(facts: JobFacts) -> _Sender | None:
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return None
    by = next((name for name in os.environ if name in _CONFIGURED_BY or name.startswith(_PREFIX)), None)
    if by is None:
        return None
    # The client logs what it raises, with a traceback: one line is ours.
    logging.getLogger("openlineage.client").setLevel(logging.CRITICAL)
    try:
        return _Sender(facts)
    except ImportError:
        _say(
            f'{by} is set; expected the extra "openlineage" to be installed: pip install "sluice[openlineage]"'
        )
    # Whatever its configuration is wrong about: events are no reason not to run.
    except Exception as error:  # noqa: BLE001
        _say(f"{by}: {type(error).__name__}: {error}")
    return None


def _say(why: str) -> None:
    sys.stderr.write(f"OpenLineage: no events are sent ({' '.join(why.split())}); the job goes on\n")


class _Sender:
    """Sends the events of one job."""

    def __init__(self, facts: JobFacts) -> None:
        from openlineage.client import OpenLineageClient
        from openlineage.client.uuid import generate_new_uuid

        self._facts, self._run_id = facts, str(generate_new_uuid())
        self._client: Any = OpenLineageClient()

    def send(self, state: str, error: BaseException | None = None) -> None:
        """An event with what is known by now."""
        if self._client is None:
            return
        try:
            self._client.emit(self._event(state, error))
        # Whatever a transport raises.
        except Exception as failure:  # noqa: BLE001
            _say(f"{state} of {self._facts.kind} {self._facts.name}: {type(failure).__name__}: {failure}")
            self._client = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _event(self, state: str, error: BaseException | None) -> Any:
        from openlineage.client import event_v2 as events
        from openlineage.client import facet_v2 as facets

        facts = self._facts
        run: dict[str, RunFacet] = {
            "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
                version=_version(), name="sluice", openlineageAdapterVersion=_version()
            )
        }
        if facts.tags:
            fields = facets.tags_run.TagsRunFacetFields
            tags = [fields(key=name, value=value, source="SLUICE") for name, value in facts.tags.items()]
            run["tags"] = facets.tags_run.TagsRunFacet(tags=tags)
        if error is not None:
            run["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
                message=f"{type(error).__name__}: {error}", programmingLanguage="PYTHON"
            )
        kind = facets.job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="SLUICE", jobType=facts.kind.upper()
        )
        return events.RunEvent(
            eventTime=datetime.now(UTC).isoformat(timespec="milliseconds"),
            eventType=events.RunState[state],
            run=events.Run(runId=self._run_id, facets=run),
            job=events.Job(
                namespace=os.environ.get(_NAMESPACE, "sluice"),
                name=f"{facts.kind}.{facts.name}",
                facets={"jobType": kind},
            ),
            inputs=[
                events.InputDataset(
                    *dataset_name(each.url),
                    _statistics(
                        each,
                        "inputStatistics",
                        facets.input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
                    ),
                    facets=_version_facet(each),
                )
                for each in facts.inputs
            ],
            outputs=[
                events.OutputDataset(
                    *dataset_name(each.url),
                    _statistics(
                        each,
                        "outputStatistics",
                        facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
                    ),
                    facets=_version_facet(each),
                )
                for each in facts.outputs
            ],
            producer=f"urn:sluice:{_version()}",
        )


def _version() -> str:
    try:
        return version("sluice")
    except PackageNotFoundError:  # a checkout on the path
        return "0"


def _version_facet(dataset: EventDataset) -> dict[str, DatasetFacet]:
    from openlineage.client import facet_v2 as facets

    if dataset.version is None:
        return {}
    return {
        "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=dataset.version)
    }


def _statistics(dataset: EventDataset, name: str, facet: Callable[..., _Facet]) -> dict[str, _Facet]:
    figures = (dataset.num_rows, dataset.num_bytes, dataset.num_files)
    return {} if figures == (None, None, None) else {name: facet(*figures)}
