"""Pure steps without Ray: Document → Document | Rejection.

Read: document, chain, then reading/ → steps/ (html/, quality/, pii/) → dedup/ → tokens/.
"""
