"""Small files that are documents are read together, by a rule that looks at names and sizes alone."""

from __future__ import annotations

import pytest

from pipeline.inputs import bundles
from pipeline.inputs.bundles import bundled
from pipeline.inputs.files import Input
from stages.reading.options import Format


def files(*names: str, size: int = 10) -> list[Input]:
    return [
        Input(source="s", index=index, name=name, url=f"/{name}", size=size)
        for index, name in enumerate(names)
    ]


def names_of(found: list[tuple[Input, ...]]) -> list[str]:
    return [" ".join(each.name for each in together) for together in found]


@pytest.mark.parametrize(
    ("format_name", "wanted"),
    [
        ("auto", ["a.py b.txt", "c.jsonl", "d.warc.gz", "e.md f.md.gz"]),
        ("file", ["a.py b.txt c.jsonl d.warc.gz e.md f.md.gz"]),
        ("jsonl", ["a.py", "b.txt", "c.jsonl", "d.warc.gz", "e.md", "f.md.gz"]),
    ],
)
def test_neighbours_that_are_documents_are_one_unit(format_name: Format, wanted: list[str]) -> None:
    listed = files("a.py", "b.txt", "c.jsonl", "d.warc.gz", "e.md", "f.md.gz")
    assert names_of(bundled(listed, format_name)) == wanted


def test_a_bundle_is_bounded_in_files_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_MOST_FILES", 3)
    monkeypatch.setattr(bundles, "_MOST_BYTES", 25)
    listed = files("a.py", "b.py", "c.py", "d.py", size=1)
    assert names_of(bundled(listed, "auto")) == ["a.py b.py c.py", "d.py"]
    assert names_of(bundled(files("a.py", "b.py", "c.py", "d.py", size=24), "auto")) == [
        "a.py b.py", "c.py d.py",
    ]  # fmt: skip
    assert names_of(bundled(files("a.py", "b.py", size=99), "auto")) == ["a.py", "b.py"]


def test_fifty_thousand_files_are_fifty_units() -> None:
    assert len(bundled(files(*(f"{number:05}.py" for number in range(50_000))), "auto")) == 50
