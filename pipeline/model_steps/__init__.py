"""Reading where steps hold models: `phase.py` first, then `work.py`, which runs in workers and actors.

`actors.py` says how many actors there are and what they reserve; `fragments.py` are the files between
operators."""
