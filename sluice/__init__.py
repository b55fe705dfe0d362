"""Sluice as a library: run a recipe, apply its steps to texts, read an output, train on it, take documents out of
both again. docs/api.md shows each.

    import sluice

    sluice.run("recipes/crawl.toml", ["run.output=/data/out"])
    output = sluice.open_output("/data/out")

Names are imported when they are first used: `import sluice` alone loads neither Ray nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lineage.index.checksums import DamagedFileError
    from lineage.index.output_index import NotFinishedError
    from lineage.purge.plan import PurgeError
    from lineage.recipe import RecipeError
    from lineage.storage.errors import StorageError
    from lineage.storage.lock import HeldError
    from lineage.store.delta import StoreError
    from lineage.store.queries.query import QueryError
    from lineage.trace.tracer import UnknownError
    from pipeline.cluster.capacity import ResourceError
    from pipeline.cluster.dataset import WorkerDiedError
    from pipeline.cluster.session import RayStartError
    from pipeline.inspect.explain.explanation import Explanation
    from pipeline.inspect.explain.refetch import RefetchError
    from pipeline.inspect.scan.evidence import ScanEvidence
    from pipeline.inspect.tune import TuneResult
    from pipeline.inspect.verification import VerifiedOutput
    from pipeline.plan import InputChangedError
    from pipeline.recipe.tables import PipelineRecipe
    from pipeline.results.faults import StrictError
    from pipeline.training.sampling import SampledText
    from pipeline.units.bad_records import TooManyBadRecordsError
    from sluice.corpus import explain, explain_file, export, export_checkpoint, scan, tune, verify
    from sluice.history import History
    from sluice.output import ChangedOutputError, Output, PurgedError, open_output
    from sluice.proofs import Proof, commit, prove
    from sluice.publishers import rights
    from sluice.purging import AppliedPurge, PlannedPurge, purge
    from sluice.records import DataRecord, record
    from sluice.running import load_recipe, load_train_recipe, run
    from sluice.sequences import Sequences
    from sluice.steps import Judged, Steps
    from sluice.tokenizer import Tokenizer, load_tokenizer
    from sluice.training import (
        Certificate,
        CheckedCertificate,
        TrainedRun,
        certify,
        check_certificate,
        compare_runs,
        evaluate,
        sample,
        train,
    )
    from stages.document import Document, Edit, Finding, Outcome, Rejection
    from trainer.attempts import FencedOutError, TrainingStoppedError
    from trainer.checkpoint.store import CheckpointError
    from trainer.evaluation.result import EvaluationResult
    from trainer.evidence.certificate_file import CertificateError
    from trainer.evidence.commitment.commit import Commitment
    from trainer.evidence.compare import CheckpointComparison
    from trainer.options import TrainRecipe
    from trainer.run.preflight import MissingShardError

__all__ = [
    "AppliedPurge",
    "Certificate",
    "CertificateError",
    "ChangedOutputError",
    "CheckedCertificate",
    "CheckpointComparison",
    "CheckpointError",
    "Commitment",
    "DamagedFileError",
    "DataRecord",
    "Document",
    "Edit",
    "EvaluationResult",
    "Explanation",
    "FencedOutError",
    "Finding",
    "HeldError",
    "History",
    "InputChangedError",
    "Judged",
    "MissingShardError",
    "NotFinishedError",
    "Outcome",
    "Output",
    "PipelineRecipe",
    "PlannedPurge",
    "Proof",
    "PurgeError",
    "PurgedError",
    "QueryError",
    "RayStartError",
    "RecipeError",
    "RefetchError",
    "Rejection",
    "ResourceError",
    "SampledText",
    "ScanEvidence",
    "Sequences",
    "Steps",
    "StorageError",
    "StoreError",
    "StrictError",
    "Tokenizer",
    "TooManyBadRecordsError",
    "TrainRecipe",
    "TrainedRun",
    "TrainingStoppedError",
    "TuneResult",
    "UnknownError",
    "VerifiedOutput",
    "WorkerDiedError",
    "certify",
    "check_certificate",
    "commit",
    "compare_runs",
    "evaluate",
    "explain",
    "explain_file",
    "export",
    "export_checkpoint",
    "load_recipe",
    "load_tokenizer",
    "load_train_recipe",
    "open_output",
    "prove",
    "purge",
    "record",
    "rights",
    "run",
    "sample",
    "scan",
    "train",
    "tune",
    "verify",
]

_PLACES = {
    "AppliedPurge": "sluice.purging",
    "Certificate": "sluice.training",
    "CertificateError": "trainer.evidence.certificate_file",
    "ChangedOutputError": "sluice.output",
    "CheckedCertificate": "sluice.training",
    "CheckpointComparison": "trainer.evidence.compare",
    "CheckpointError": "trainer.checkpoint.store",
    "Commitment": "trainer.evidence.commitment.commit",
    "DamagedFileError": "lineage.index.checksums",
    "DataRecord": "sluice.records",
    "Document": "stages.document",
    "Edit": "stages.document",
    "EvaluationResult": "trainer.evaluation.result",
    "Explanation": "pipeline.inspect.explain.explanation",
    "FencedOutError": "trainer.attempts",
    "Finding": "stages.document",
    "HeldError": "lineage.storage.lock",
    "History": "sluice.history",
    "InputChangedError": "pipeline.plan",
    "Judged": "sluice.steps",
    "MissingShardError": "trainer.run.preflight",
    "NotFinishedError": "lineage.index.output_index",
    "Outcome": "stages.document",
    "Output": "sluice.output",
    "PipelineRecipe": "pipeline.recipe.tables",
    "PlannedPurge": "sluice.purging",
    "Proof": "sluice.proofs",
    "PurgeError": "lineage.purge.plan",
    "PurgedError": "sluice.output",
    "QueryError": "lineage.store.queries.query",
    "RayStartError": "pipeline.cluster.session",
    "RecipeError": "lineage.recipe",
    "RefetchError": "pipeline.inspect.explain.refetch",
    "Rejection": "stages.document",
    "ResourceError": "pipeline.cluster.capacity",
    "SampledText": "pipeline.training.sampling",
    "ScanEvidence": "pipeline.inspect.scan.evidence",
    "Sequences": "sluice.sequences",
    "Steps": "sluice.steps",
    "StorageError": "lineage.storage.errors",
    "StoreError": "lineage.store.delta",
    "StrictError": "pipeline.results.faults",
    "Tokenizer": "sluice.tokenizer",
    "TooManyBadRecordsError": "pipeline.units.bad_records",
    "TrainRecipe": "trainer.options",
    "TrainedRun": "sluice.training",
    "TrainingStoppedError": "trainer.attempts",
    "TuneResult": "pipeline.inspect.tune",
    "UnknownError": "lineage.trace.tracer",
    "VerifiedOutput": "pipeline.inspect.verification",
    "WorkerDiedError": "pipeline.cluster.dataset",
    "certify": "sluice.training",
    "check_certificate": "sluice.training",
    "commit": "sluice.proofs",
    "compare_runs": "sluice.training",
    "evaluate": "sluice.training",
    "explain": "sluice.corpus",
    "explain_file": "sluice.corpus",
    "export": "sluice.corpus",
    "export_checkpoint": "sluice.corpus",
    "load_recipe": "sluice.running",
    "load_tokenizer": "sluice.tokenizer",
    "load_train_recipe": "sluice.running",
    "open_output": "sluice.output",
    "prove": "sluice.proofs",
    "purge": "sluice.purging",
    "record": "sluice.records",
    "rights": "sluice.publishers",
    "run": "sluice.running",
    "sample": "sluice.training",
    "scan": "sluice.corpus",
    "train": "sluice.training",
    "tune": "sluice.corpus",
    "verify": "sluice.corpus",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sluice")
    if name not in _PLACES:
        raise AttributeError(f"module 'sluice' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(importlib.import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        from sluice.messages import say_how_to_install

        say_how_to_install(error, name)
        raise


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
