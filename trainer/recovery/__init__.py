"""All that sends a run back, and what it does again. Read: back (to a checkpoint) → readings (of what was purged) →
forget (back before them) → rollbacks (what was asked for, until it is carried out).

repeats and repeated: batches that are skipped one after the other; faults: which steps do not count; call and
options: what a call asks for; same_recipe: what a recipe changes on the way; price: what a replay costs."""
