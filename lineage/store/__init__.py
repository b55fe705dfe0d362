"""The Delta tables under OUT/lineage: tables (schemas), rows → write, shuffle → delta (commits),
checksum_update → lookup, views, sql, query (questions), purged_spans, digest (the content as a digest a
table). Readers go through checked and arrow_table, whose errors are in damage."""
