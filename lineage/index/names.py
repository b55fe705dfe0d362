"""The files at the top of an OUT that several packages write, read or clean, by name."""

from typing import Final

RECIPE_FILE: Final = "recipe.toml"
RUN_FILE: Final = "run.json"
EXCERPTS_FILE: Final = "excerpts.parquet"
REPORT_FILE: Final = "report.html"
