"""`sluice`: from a recipe to a finished output, and the command line.

Read downward: process → plan, recipe → phases/ → dedup/ → cluster/. Commands are in cli/, formats in
export/formats/."""
