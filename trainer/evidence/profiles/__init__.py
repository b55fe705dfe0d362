"""Traces of training steps, read afterwards: torch_trace and nsight → rank_trace → profile → words."""
