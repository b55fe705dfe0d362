"""The Delta tables under OUT/lineage: tables (schemas), rows → write, shuffle → delta (commits),
checksum_update → lookup, queries (SQL), purged_spans.
work: what a run keeps in OUT/work until it is finished.

Readers go through checked and arrow_table, whose errors are in damage."""
