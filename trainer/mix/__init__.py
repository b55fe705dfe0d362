"""Mixing-weight ablations: space → design → proxies → ablation → swarm → fit → optimize → report;
dsir, em, doremi beside.
"""
