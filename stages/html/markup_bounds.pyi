def markup_bounds(html: bytes, limit: int) -> tuple[int, int]:
    """How many tags a page (in UTF-8) has at most, and a number of which the nesting of its elements (`html` and `body`
    aside) is at most the double where it is above `limit`.

    The first is the number of `<`. The second: for each name, the most start tags that no end tag of that name has
    answered yet, added up: a stray `</x>` does not make up for a `<div>`, nor does a `</div>` in a comment, an
    attribute, a script or in a table that began behind the `<div>`. Elements that leave out their end tag (p, li) make
    it larger than the truth: a page above the limit deserves `stages.html.markup.depth`, one below needs no more.
    Raises MemoryError where there is no room for the start tags (40 bytes each)."""
