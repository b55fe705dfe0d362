"""The report: collect → data → render, from facts that a run left (pipeline.results)."""
