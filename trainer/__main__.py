"""`python -m trainer RECIPE` (`command.py`)."""

from __future__ import annotations

import sys

from trainer.processes.asked_stacks import stacks_to_stderr

if __name__ == "__main__":
    stacks_to_stderr()
    # Behind it: importing torch takes seconds, in which a signal may come.
    from trainer.command import main

    sys.exit(main())
