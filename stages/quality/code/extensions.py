"""Which language a source file is in, by its name: the extension, or for files such as Makefile the whole
name.

Names of languages are those of GitHub's Linguist in lower case, with a hyphen for a space; C++, C#, F# and
Standard ML are cpp, csharp, fsharp and sml. An extension that several languages share names the one that most
files are in (`.h`: c)."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from stages.document import Document

_EXTENSIONS: Final[Mapping[str, str]] = {
    "ada": "adb ads", "agda": "agda", "antlr": "g4", "applescript": "applescript", "assembly": "asm s nasm",
    "awk": "awk", "batchfile": "bat cmd", "bibtex": "bib", "c": "c h", "clojure": "clj cljs cljc edn",
    "cmake": "cmake", "cobol": "cob cbl cpy", "coffeescript": "coffee", "common-lisp": "lisp lsp cl",
    "cpp": "cpp cc cxx c++ hpp hh hxx h++ ipp inl tpp", "crystal": "cr", "csharp": "cs csx", "css": "css",
    "csv": "csv tsv", "cuda": "cu cuh", "cython": "pyx pxd pxi", "d": "d di", "dart": "dart", "diff": "diff patch",
    "dockerfile": "dockerfile", "dot": "dot gv", "elixir": "ex exs", "elm": "elm", "emacs-lisp": "el",
    "erlang": "erl hrl", "fortran": "f f77 f90 f95 f03 f08 for", "fsharp": "fs fsi fsx", "glsl": "glsl vert frag",
    "go": "go", "graphql": "graphql gql", "groovy": "groovy gradle", "haskell": "hs", "hcl": "hcl tf tfvars",
    "html": "html htm xhtml", "idris": "idr", "ini": "ini cfg", "java": "java", "javascript": "js mjs cjs jsx",
    "json": "json jsonl ndjson geojson webmanifest", "julia": "jl", "jupyter": "ipynb", "kotlin": "kt kts",
    "lean": "lean", "less": "less", "literate-haskell": "lhs", "lua": "lua", "m4": "m4 ac", "makefile": "mk mak",
    "markdown": "md markdown mdown mkd", "mathematica": "nb wl", "matlab": "mat mlx", "motorola-68k": "x68",
    "nim": "nim nims", "nix": "nix", "objective-c": "m mm", "ocaml": "ml mli mll mly", "org": "org",
    "owl": "owl", "pascal": "pas pp lpr dpr", "perl": "pl pm t", "php": "php phtml", "powershell": "ps1 psm1 psd1",
    "prolog": "pro prolog", "protobuf": "proto", "python": "py pyi pyw", "r": "r", "racket": "rkt",
    "restructuredtext": "rst rest", "roff": "1 2 3 4 5 6 7 8 9 roff man me ms", "ruby": "rb rake gemspec",
    "rust": "rs", "sas": "sas", "sass": "sass", "scala": "scala sc sbt", "scheme": "scm ss", "scss": "scss",
    "shell": "sh bash zsh ksh", "smalltalk": "st", "smt": "smt smt2", "solidity": "sol", "sparql": "sparql rq",
    "sql": "sql ddl", "stan": "stan", "sml": "sml", "stata": "do ado", "svelte": "svelte", "svg": "svg",
    "swift": "swift", "systemverilog": "sv svh", "tcl": "tcl", "tcsh": "csh tcsh", "tex": "tex sty cls ltx bbx",
    "text": "txt", "thrift": "thrift", "toml": "toml", "typescript": "ts tsx mts cts", "vala": "vala",
    "verilog": "v vh", "vhdl": "vhd vhdl", "vim": "vim", "visual-basic": "vb vbs bas", "vue": "vue",
    "webassembly": "wat wast", "xml": "xml xsd rdf plist wsdl", "xslt": "xsl xslt", "yacc": "y yy", "yaml": "yml yaml",
    "zig": "zig",
}  # fmt: skip

_NAMES: Final[Mapping[str, str]] = {
    "makefile": "makefile", "gnumakefile": "makefile", "kbuild": "makefile", "cmakelists.txt": "cmake",
    "dockerfile": "dockerfile", "containerfile": "dockerfile", "rakefile": "ruby", "gemfile": "ruby",
    "vagrantfile": "ruby", "jenkinsfile": "groovy", "sconstruct": "python", "wscript": "python",
    "build.bazel": "python", ".bashrc": "shell", ".profile": "shell", ".zshrc": "shell", ".vimrc": "vim",
    ".emacs": "emacs-lisp", "configure.ac": "m4", "license": "text", "licence": "text", "copying": "text",
    "notice": "text", "readme": "text",
}  # fmt: skip
"""Files that are named so, in any case."""

LANGUAGES: Final = frozenset({*_EXTENSIONS, *_NAMES.values()})
"""Every language that a name can tell."""


@functools.cache
def _by_extension() -> Mapping[str, str]:
    return {extension: language for language, all_of in _EXTENSIONS.items() for extension in all_of.split()}


def path_of(document: Document) -> str:
    """The path of a source file: that of the document's URL, or else what its id_field holds."""
    if document.url is None:
        return document.record_id or ""
    address = document.url.partition("#")[0].partition("?")[0]
    return unquote(address.partition("://")[2].partition("/")[2] if "://" in address else address)


def language_of_path(path: str) -> str | None:
    """The language of a file of this name; None for one that no name tells."""
    name = posixpath.basename(path.replace("\\", "/")).lower()
    if name in _NAMES:
        return _NAMES[name]
    stem, dot, extension = name.rpartition(".")
    return _by_extension().get(extension) if dot and stem else None
