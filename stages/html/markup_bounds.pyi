def markup_bounds(html: bytes) -> tuple[int, int]:
    """How many tags a page (in UTF-8) has at most, and a number that the nesting of its elements does not pass.

    The first is the number of `<`. The second: for each name, the most start tags that no end tag of that name (as
    written) has answered yet, added up: a stray `</x>` does not make up for a `<div>`. Elements that need no end tag
    (img, p, li) make it larger than the truth: a page above a limit deserves `stages.html.markup.depth`, one below
    needs no more."""
