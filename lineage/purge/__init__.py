"""Taking documents out: plan → rewrite (files without them) → execution; erase removes what dead writers and bucket
versions left; returned finds what a backup brought back; purge_filter and purged_sets keep it out of new runs.
"""
