"""The report: collect (funnels, buckets, examples …) → data → render, from facts that a run left (pipeline.results)."""
