def next_tag(html: str, at: int) -> tuple[str, int, int] | None:
    """The next start tag from `at` on that the rewriting looks at: its name in small letters, where its `<` is and
    where its name ends. These are formulas, raised text, images that may show TeX, scripts that may be some,
    `mjx-container`, and each `span` and `div` that may be wrapped around a formula by what its first 2,000 characters
    name. No tag is in a comment, in another script, or in another element that holds plain text."""
