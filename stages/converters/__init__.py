"""Payloads that are neither HTML nor plain text, to one of these by a library: converter (the types, and what may
come of a payload) → wikitext, pdf, epub, latex. The step parse has all of it done in a child process."""
