"""The lineage page on loopback. In order: serve starts it, guard says who is answered, app puts its places
together, site is one output on it, handlers answer, views gather what they show; notes, lists and jobs are
what it keeps."""
