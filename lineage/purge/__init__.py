"""Taking documents out: plan → rewrite → execution; erase leaves no bytes, purge_filter keeps later runs clean."""
