"""Taking documents out: plan → rewrite → execution; erase leaves no bytes; purge_filter keeps them out of new runs."""
