"""Mixing-weight ablations: space → design → proxies → ablation → swarm → fit → optimize → report.

Besides them: dsir, em, doremi.
"""
