"""The report: collect → data → render; excerpts, faults and clusters are gathered while a run works."""
