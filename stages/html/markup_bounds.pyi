def markup_bounds(
    html: bytes, head: list[tuple[int, int]] | None = None
) -> tuple[int, int, int, int, int, bool]:
    """How many tags a page (in UTF-8) has at most; a number of which the nesting of its elements (`html` and `body`
    aside) is at most the double; how many elements a parser adds at most for no tag of their own; the most attributes
    of one tag; the most options of one `<select>`; whether it may hold what `stages.html.maths` rewrites.

    The first is the number of `<`. The second: for each name, the most start tags that no end tag of that name has
    answered yet, added up: a stray `</x>` does not make up for a `<div>`, nor does a `</div>` in a comment, an
    attribute, a script or in a table that began behind the `<div>`. Elements that leave out their end tag (p, li) make
    it larger than the truth: `stages.html.markup.depth` tells that.

    The third are the formatting elements (`b`, `font`, …) that are opened again behind the blocks that they were left
    open in, each with its attributes: it counts once, and once more for each 128 bytes of its tag. It is far above the
    truth where many stay open for long: `stages.html.markup.num_elements` tells the number.

    The fourth is above the truth at most where <svg>, <math>, <select> or <frameset> may be open around plain text.

    The fifth counts on from one `<select>` to the next where the tags do not show that the first has ended.

    The sixth is so where there is a `math`, `sup` or `sub` element, a script or an image that may be of TeX, a fraction
    slash or an entity for one.

    To `head` is added where, in characters, the stretch begins and ends that follows the start tag of the page's head
    and is in the head alone; nothing where there is none, or nothing follows it.

    Raises MemoryError where there is no room for the start tags (64 bytes each)."""
