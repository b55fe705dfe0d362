"""An export of Nsight Systems, made by its schema."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from pipeline.cli.main import main
from tests.support.training.traces import NsightExport
from trainer.evidence.profiles.nsight import read_nsight
from trainer.evidence.profiles.rank_trace import TraceError


def export(path: Path) -> Path:
    """Computing 0–300 and 400–700 µs, a reduce-scatter 250–500, a copy 700–750, idle until 900."""
    made = NsightExport(path)
    made.range("forward", 0, 400)
    made.range("backward", 400, 900)
    made.kernel("gemm", 0, 300, launched=0)
    made.kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 250, 500, launched=240)
    made.kernel("gemm", 400, 700, launched=390)
    made.copy(700, 750, launched=600, num_bytes=1 << 20)
    made.call("cudaDeviceSynchronize_v3020", 740, 820)
    made.kernel("adam", 850, 900, launched=830)
    made.close()
    return path


def test_the_command_reads_an_export_that_lies_in_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/profile").mkdir(parents=True)
    export(tmp_path / "run/profile/node0.sqlite")
    assert main(["train", "profile", str(tmp_path / "run"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    (rank,) = plain["ranks"]
    assert (plain["tool"], plain["device"], rank["host_name"]) == ("Nsight Systems", "NVIDIA H200", "node")
    assert [
        rank[part] for part in ("computing", "communication", "hidden", "exposed", "copying", "idle")
    ] == (pytest.approx([650e-6, 250e-6, 150e-6, 100e-6, 50e-6, 100e-6]))
    (collective,) = plain["collectives"]
    assert (collective["name"], collective["hidden_share"]) == ("reduce-scatter", pytest.approx(0.6))
    (gap,) = rank["gaps"]
    assert (gap["cause"], gap["phase"], gap["during"]) == (
        "synchronisation",
        "backward",
        "cudaDeviceSynchronize_v3020",
    )
    assert [kernel["name"] for kernel in plain["kernels"]] == [
        "void gemm<float>(float*)",
        "void adam<float>(float*)",
    ]


def test_exports_of_several_nodes_are_ranks_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [word for name in ("a", "b") for word in ("--nsight", str(export(tmp_path / f"{name}.sqlite")))]
    assert main(["train", "profile", str(tmp_path), *calls, "--json"]) == 0
    assert [rank["rank"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [0, 1]


def test_an_export_of_another_version_may_lack_tables_and_columns(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old.sqlite") as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, demangledName INT)"
        )
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 0, 1)")
    (trace,) = read_nsight(tmp_path / "old.sqlite")
    assert trace.activity.computing.length == 4000 and trace.activity.works[0].name == "gemm"


def test_what_is_no_export_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.sqlite").write_text("no database, but long enough to have a header of its own: " * 20)
    sqlite3.connect(tmp_path / "empty.sqlite").close()
    for name in ("text", "empty"):
        with pytest.raises(TraceError):
            read_nsight(tmp_path / f"{name}.sqlite")
        assert main(["train", "profile", str(tmp_path), "--nsight", str(tmp_path / f"{name}.sqlite")]) == 1
        told = capsys.readouterr().err
        assert f"{name}.sqlite" in told and "Traceback" not in told
