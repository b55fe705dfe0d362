"""The compiled modules. All else about the package stands in pyproject.toml."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(path for package in ("stages", "trainer") for path in Path(package).rglob("*.pyx"))

setup(
    ext_modules=cythonize(
        [
            Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=["-O3"])
            for path in SOURCES
        ],
        build_dir="build",
    )
)
