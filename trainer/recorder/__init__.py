"""What each rank did last, kept in a file that outlives a killed process: noting, ring → operations (collectives and
messages) → recorder (steps, stacks); files names what lies in a run's output. diagnosis/ reads them all."""
