"""What units and runs came to, and the rows that they write: facts, below the pages that show them.

In order: rows, faults, unit_results, dedup_result, excerpts, clusters, run_summary.
"""
