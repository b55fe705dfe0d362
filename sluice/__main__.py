"""`python -m sluice` is the command `sluice`."""

import sys

from pipeline.cli.main import main

sys.exit(main())
