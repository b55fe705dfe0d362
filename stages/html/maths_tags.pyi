def next_tag(html: str, at: int) -> tuple[str, int, int] | None:
    """The next comment (`!--`) or start tag from `at` on that the rewriting looks at: its name in small letters, where
    its `<` is and where its name ends. These are formulas, raised text, images, elements that hold plain text,
    `mjx-container`, and each `span` and `div` that may be wrapped around a formula by what its first 2,000 characters
    name."""
