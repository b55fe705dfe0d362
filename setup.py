"""The compiled modules: each .pyx, and each .py that has a .pxd with its types, which runs uncompiled too. All else
about the package stands in pyproject.toml."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(
    [*Path("stages").rglob("*.pyx"), *(path.with_suffix(".py") for path in Path("trainer").rglob("*.pxd"))]
)

setup(
    ext_modules=cythonize(
        [
            Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=["-O3"])
            for path in SOURCES
        ],
        build_dir="build",
    )
)
