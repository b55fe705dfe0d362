"""SQL over the store: query starts a process that runs sql, over the definitions of views."""
