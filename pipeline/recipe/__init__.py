"""The recipe of `sluice run`: tables, parts and checks (what must hold of them), load."""
