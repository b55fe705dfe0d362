"""Every claim about speed: one module a benchmark, `python -m benchmarks.NAME`, beside a named peer or
bound."""
