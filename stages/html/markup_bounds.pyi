def markup_bounds(html: bytes, limit: int) -> tuple[int, int]:
    """How many tags a page (in UTF-8) has at most, and a number that the nesting of its elements (`html` and `body`
    aside) does not pass where that is above `limit`.

    The first is the number of `<`. The second: for each name, the most start tags that no end tag of that name (as
    written) has answered yet, added up: a stray `</x>` does not make up for a `<div>`, nor does a `</div>` in a
    comment, an attribute or a script. Elements that need no end tag (img, p, li) make it larger than the truth: a page
    above the limit deserves `stages.html.markup.depth`, one below needs no more."""
