"""The report: collect (funnels, buckets, examples …) → data → render, from facts that a run left (pipeline.results).
training/ has the pages of training runs; all begin with head.html and have style.css."""
