"""A source file's language: cases worked from Linguist's strategies and patterns."""

from __future__ import annotations

import pytest

from stages.quality.code.language import _GENERIC, _USUAL, _linguist, language_of, languages

pytestmark = pytest.mark.differential("stages/quality")

CASES = [
    ("src/a.PY", "", "python"),
    ("x.hpp", "", "cpp"),
    ("Makefile", "", "makefile"),
    ("a\\b\\CMakeLists.txt", "", "cmake"),
    ("page.html", "", "html"),
    ("n.ipynb", "", "jupyter"),
    ("main.tf", "", "hcl"),
    (".bashrc", "", "shell"),
    ("a.blade.php", "", "blade"),  # the longest extension that is known
    ("a.eex", "", "html-eex"),  # The Stack's list has it, Linguist no longer
    ("archive.zip", "", None),
    ("noextension", "", None),
    ("", "", None),
    # By what stands in the text, where several languages have the extension.
    ("a.m", "@interface Foo : NSObject\n@end\n", "objective-c"),
    ("a.m", "function y = f(x)\n% of x\ny = x;\nend\n", "matlab"),
    ("a.m", ":- module foo.\n", "mercury"),
    ("a.h", "int f(void);\n", "c"),
    ("a.h", "class A {\npublic:\n  int x;\n};\n", "cpp"),
    ("a.h", "@interface X\n@end\n", "objective-c"),
    ("a.pl", "use strict;\nmy $x = 1;\n", "perl"),
    ("a.pl", ":- module(x, []).\nfoo(X) :- bar(X).\n", "prolog"),
    ("a.ts", "export const a: number = 1;\n", "typescript"),
    ("a.ts", '<?xml version="1.0"?>\n<!DOCTYPE TS>\n<TS version="2.1">', "xml"),
    ("a.sol", "pragma solidity ^0.8.0;\n", "solidity"),
    ("a.sol", "no words of it", None),  # .sol alone says too little
    ("a.txt", "127.0.0.1 localhost\n::1 localhost\n", "hosts-file"),
    ("a.txt", "[Adblock Plus 2.0]\n||example.com^\n", "adblock-filter-list"),
    ("a.txt", "*a.txt* For Vim\n vim:tw=78:ft=help:\n", "vim-help-file"),
    ("a.txt", "127 localhost\n", "text"),
    ("a.tpl", "{foo}", "smarty"),
    ("a.tpl", "{{ foo }}", "go-template"),
    ("a.1", ".TH A 1\n.SH NAME\n", "roff-manpage"),
    ("a.1", "words", "text"),
    ("a.cfg", "[a]\nb = 1\n", "ini"),  # no pattern parts it: the usual one
    ("a.v", "words", "verilog"),
    ("a.m", "x = 1;\n", "matlab"),
    ("a.sch", "words", "kicad-schematic"),
    ("a.sch", '<?xml version="1.0"?>\n<eagle/>', "xml"),
    # First lines and modelines.
    ("run", "#!/usr/bin/env -S python3.11 -u\n", "python"),
    ("run", "#!/bin/sh\nexec tclsh \"$0\" \"$@\"\n", "tcl"),
    ("run", "#!/bin/sh\nexec scala $0 $@\n", "scala"),
    ("run", "#!/bin/sh\nset -e\n", "shell"),
    ("run", "# -*- mode: Ruby; tab-width: 2 -*-\n", "ruby"),
    ("run.h", "/* -*-c++-*- */\n", "cpp"),
    ("run", "words\n" * 9 + "# vim: set sw=4 ft=perl:\n", "perl"),
    ("run", "words\n" * 9 + "# vim: ft=perl\n" + "words\n" * 9, None),  # neither end of the file
    ("run", '<?xml version="1.0"?>\n<a/>', "xml"),
    ("a.3pm", ".TH A 3\n.SH NAME\n", "roff-manpage"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "text", "language"), CASES)
def test_a_file_has_the_language_that_linguist_tells(path: str, text: str, language: str | None) -> None:
    assert language_of(path, text) == language


def test_every_language_has_a_name_of_its_own_that_a_file_may_be_named_by() -> None:
    assert len(languages()) == 829
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.#_-") for name in languages())


def test_the_usual_language_of_an_extension_is_one_of_those_that_have_it() -> None:
    by_extension = _linguist().by_extension
    assert [each for each, name in _USUAL.items() if name not in by_extension[each]] == []
    assert [each for each in _GENERIC if each not in by_extension] == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", ["a.h", "a.m", "a.txt", "a.as", "a.ts", "a.app", "a.cls", "a.md"])
@pytest.mark.parametrize("piece", [" ", "\n", "a", "-*-a ", "(", "vim: ", "a=", "function a(", "#!/", "[a,"])
def test_hostile_files_are_told_in_time_linear_in_their_length(path: str, piece: str) -> None:
    language_of(path, piece * (1_000_000 // len(piece)))
