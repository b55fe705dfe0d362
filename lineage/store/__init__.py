"""The Delta tables under OUT/lineage: tables (schemas), rows → write, shuffle → delta (commits),
checksum_update → lookup, queries (SQL), purged_spans.

Readers go through checked and arrow_table, whose errors are in damage."""
