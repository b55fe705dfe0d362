"""`sluice run --from OUT`: a run whose input is the texts that an earlier one kept after parse.

In order: step_keys says which steps are unchanged; earlier opens the output and refuses what it cannot serve;
judging sends one document on its way from where its way changes; unit does so for all of an input file."""
