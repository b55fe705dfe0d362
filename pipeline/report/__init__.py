"""The report: collect → data → render; excerpts and clusters are gathered while a run works."""
