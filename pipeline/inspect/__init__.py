"""Questions about a recipe or an output: explain, scan, likeness, tracing; document_history prints a trace.

hooks gives lineage the functions that it cannot import.
"""
