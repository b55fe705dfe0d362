"""Taking documents out: plan → rewrite (files without them) → parsed_texts, exports (their copies) →
execution, which makes it durable against a kill; erase removes what dead writers and bucket versions left;
sweeps cleans block caches, and says which still hold it; returned finds what a backup brought back;
purge_filter and purged_sets keep it out of new runs."""
