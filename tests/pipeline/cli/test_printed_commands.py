"""Every command that Sluice prints for the next step can be pasted into a shell, whatever the paths in it
hold."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.cli.commands import parse_command
from pipeline.cli.corpus.summary import show_summary
from pipeline.cli.main import main
from pipeline.results.run_summary import RunSummary
from tests.support.checkout import ROOT

ODD = "/data/o'brien données (1) 100%"
PACKAGES = ("lineage", "stages", "trainer", "pipeline", "sluice")
BEGUN = re.compile(r"sluice [a-z]+ (?:[^\"'`]* )?$")
"""What stands before a value that is an argument of a printed command."""
NO_PATHS = {
    "report.step", "max(result.step - 1, 0)", "seed", "doc_id", "row.doc_id.hex()", "doc_id.hex()", "name", "command",
    "job.id", "purge['purge_id']", "step",
    "first.doc_id", "history.row.doc_id.hex()", "options.against",
}  # fmt: skip
"""Values that hold no character which a shell reads: numbers, ids, names of our own commands and options."""


def unquoted(path: Path) -> Iterator[str]:
    """The f-strings of a module that put a value into a command as it is."""
    tree = ast.parse(path.read_text())
    quoted = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "quote" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                before += str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            value = ast.unparse(part.value)
            if BEGUN.search(before) and "quote" not in value and value not in NO_PATHS | quoted:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {value}"
            before += "X"


def test_no_command_is_printed_with_a_value_that_a_shell_would_take_apart() -> None:
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert [found for path in modules for found in unquoted(path)] == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('print(f"sluice verify {out}")', True),
        ('print(f"Wrote {to}. Next: sluice run {to} --json")', True),
        ('print(f"sluice purge OUT --doc {doc_id}")', False),
        ('print(f"sluice verify {shlex.quote(out)}")', False),
        ('out = shlex.quote(out)\nprint(f"sluice verify {out}")', False),
        ('print(f"sluice {command} failed")', False),
    ],
)
def test_the_search_finds_what_it_is_for(
    line: str, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "a.py").write_text(line)
    assert bool(list(unquoted(tmp_path / "a.py"))) == is_found


def calls(text: str) -> list[list[str]]:
    """The commands of a text, one a line, as a shell reads them."""
    return [
        shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith("  sluice ")
    ]


def test_the_commands_behind_a_run_name_its_output_as_it_is_called() -> None:
    counts = ("bytes", "documents", "kept", "unreadable", "records", "files", "tokens", "shards")
    summary = RunSummary(
        name="r",
        output=ODD,
        rejected={},
        dedup={},
        order_fingerprint="",
        content_fingerprint="",
        seconds={},
        phases=(),
        identity={"recipe": {"source": [], "dedup": {}, "tokenize": {}}},
        **{f"num_{name}": 1 for name in counts},
    )
    written = StringIO()
    show_summary(Console(file=written, width=100), summary)
    found = calls(written.getvalue())
    assert [call[0] for call in found] == ["verify", "lineage", "export"]
    assert [parse_command(call[0], call[1:]).out for call in found] == [ODD] * 3


def test_the_commands_behind_a_new_recipe_name_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "o'brien (1).toml")
    assert main(["recipe", "new", "text", "--to", path]) == 0
    words = shlex.split(capsys.readouterr().out.partition("Next: ")[2].replace(", then", " ; "))
    assert words == ["sluice", "recipe", "check", path, ";", "sluice", "run", path]
