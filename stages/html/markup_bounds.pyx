# cython: language_level=3, boundscheck=False, wraparound=False
"""How big and how deep a page's markup is at most, in one pass over its bytes: this is asked of every page."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memset

cdef enum:
    _LOG_SLOTS = 10
    _SLOTS = 1 << _LOG_SLOTS
    _PROBES = 16
    _CUT = 0  # the code of a name that is too long to have one

cdef uint64_t _ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiplying by it spreads a name over the high bits (Knuth, TAOCP 3, 6.4)."""

# The special elements of HTML (standard, 13.2.4.2), behind which an end tag of another element is passed over; with
# those of SVG and MathML, whose names stop nothing elsewhere, which makes the bound larger at most.
_SPECIAL_NAMES = (
    b"address applet area article aside base basefont bgsound blockquote body br button caption center col colgroup dd"
    b" details dir div dl dt embed fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header"
    b" hgroup hr html iframe img input keygen li link listing main marquee menu meta nav noembed noframes noscript"
    b" object ol p param plaintext pre script search section select source style summary table tbody td template"
    b" textarea tfoot th thead title tr track ul wbr xmp"
    b" annotation-xml desc foreignobject mi mn mo ms mtext"
).split()
_VOID_NAMES = (
    b"area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr"
).split()
_LONG_NAMES = (b"annotation-xml", b"blockquote", b"figcaption", b"foreignobject", b"plaintext")
"""Those of more than eight bytes: their codes are 1 to 5."""

cdef struct Name:
    uint64_t code  # the name's bytes, at most eight; 0: a free slot
    bint is_special
    bint is_void
    Py_ssize_t open  # start tags that no end tag has answered yet
    Py_ssize_t most  # the most of those so far
    Py_ssize_t last  # the last of them, in Nesting.starts; -1: none

cdef struct Start:
    uint64_t code
    Py_ssize_t before  # of the same name; -1: none
    Py_ssize_t within  # the last special element on the stack when it came, in Nesting.starts; -1: none
    Py_ssize_t disorders

cdef struct Nesting:
    Name[_SLOTS] names
    Start* starts
    Py_ssize_t num_starts
    Py_ssize_t room
    Py_ssize_t* stack  # special elements that nest in one another, as their tags say: places in `starts`
    Py_ssize_t height
    Py_ssize_t disorders  # end tags of special elements that were not the last on the stack
    Py_ssize_t depth

cdef Name[_SLOTS] _KNOWN  # the names that are special or void, in their slots


# Why the depth is a bound. A start tag is answered by an end tag of its name if every special element that began
# between them has ended there too, each by its own end tag and the last first, and the one around both is the same.
# Then a parser has nothing open between the two that makes it pass over the end tag, wherever it stands (HTML
# standard, 13.2.6.4.7, "Any other end tag", the adoption agency, and the scopes, whose borders are special elements).
# It ends the element that the start tag opened; or one that began earlier, if that one has ended without a tag of its
# own. So for each name and each moment, of the tags up to then no more are open in the parser than are unanswered
# here. `most` is the most unanswered ones of a name, and their sum over the names at least the nesting. One end tag
# answers nothing: `</form>` ends the form and not what began in it, which stays inside of it in the tree.
#
# What makes the sum larger at most: an end tag out of order answers nothing, and none behind it answers a start tag
# before it; names of more than eight bytes and names without a slot are never answered. What the sum does not know:
# `html`, `body`, and the `tbody`, `colgroup` and `tr` that a table may leave out: they double it at most.
#
# Which tags a parser sees is another question. It sees none in comments, in values of attributes and in elements whose
# content is plain text. Inside <svg> it takes the content of these for markup, and there are CDATA sections. So the
# markup is read both ways, and the larger sum counts. Where the second way cannot tell whether <svg> is open and it
# matters, it counts every start tag from there on.
def markup_bounds(bytes html not None, Py_ssize_t limit):
    cdef Nesting nesting
    cdef Py_ssize_t num_tags, num_start_tags = 0, of_all, of_tokens
    nesting.starts, nesting.stack, nesting.room = NULL, NULL, 0
    try:
        _reset(&nesting)
        num_tags = _read_all(&nesting, html, &num_start_tags)
        of_all = nesting.depth
        if num_start_tags <= limit:  # whatever hides their end tags
            return num_tags, of_all
        _reset(&nesting)
        _read_tokens(&nesting, html)
        of_tokens = nesting.depth
        return num_tags, max(of_all, of_tokens)
    finally:
        free(nesting.starts)
        free(nesting.stack)


cdef void _reset(Nesting* nesting) noexcept:
    memcpy(nesting.names, _KNOWN, sizeof(_KNOWN))
    nesting.num_starts = nesting.height = nesting.disorders = nesting.depth = 0


cdef int _start(Nesting* nesting, uint64_t code) except -1:
    """A start tag; MemoryError if there is no room for it."""
    cdef Name* name = NULL if code == _CUT else _find(nesting.names, code)
    if name == NULL:  # as if it were never ended, which makes the sum larger at most
        nesting.depth += 1
        return 0
    name.code = code
    if name.is_void and not _may_be_foreign(nesting):
        if not name.most:
            name.most = 1
            nesting.depth += 1
        return 0
    if nesting.num_starts == nesting.room:
        _make_room(nesting)
    if not name.open:
        name.last = -1
    nesting.starts[nesting.num_starts] = Start(code, name.last, _within(nesting), nesting.disorders)
    name.last = nesting.num_starts
    nesting.num_starts += 1
    name.open += 1
    if name.open > name.most:
        name.most = name.open
        nesting.depth += 1
    if name.is_special:
        nesting.stack[nesting.height] = name.last
        nesting.height += 1
    return 0


cdef void _end(Nesting* nesting, uint64_t code) noexcept:
    """An end tag."""
    cdef Name* name = NULL if code == _CUT else _find(nesting.names, code)
    cdef Start* start
    if name == NULL or not name.code:
        return
    if name.is_special:
        if not nesting.height or nesting.starts[_within(nesting)].code != code:
            nesting.height = 0
            nesting.disorders += 1
            return
        nesting.height -= 1
    if name.open and code != _FORM:
        start = &nesting.starts[name.last]
        if start.within == _within(nesting) and start.disorders == nesting.disorders:
            name.open -= 1
            name.last = start.before


cdef inline Py_ssize_t _within(Nesting* nesting) noexcept:
    return nesting.stack[nesting.height - 1] if nesting.height else -1


cdef inline bint _may_be_foreign(Nesting* nesting) noexcept:
    """Whether <svg> or <math> may be open, in which other rules hold."""
    return _find(nesting.names, _SVG).open > 0 or _find(nesting.names, _MATH).open > 0


cdef int _make_room(Nesting* nesting) except -1:
    cdef Py_ssize_t room = max(1024, 2 * nesting.room)
    cdef void* starts = realloc(nesting.starts, room * sizeof(Start))
    cdef void* stack
    if starts == NULL:
        raise MemoryError
    nesting.starts = <Start*> starts
    stack = realloc(nesting.stack, room * sizeof(Py_ssize_t))
    if stack == NULL:
        raise MemoryError
    nesting.stack = <Py_ssize_t*> stack
    nesting.room = room
    return 0


cdef Py_ssize_t _read_all(Nesting* nesting, bytes html, Py_ssize_t* num_start_tags) except -1:
    """Take everything that looks like a tag for one, wherever it stands; the number of `<`, and of start tags."""
    cdef const unsigned char* at = html
    cdef const unsigned char* end = at + len(html)
    cdef uint64_t code
    cdef bint is_end
    cdef Py_ssize_t num_tags = 0
    while True:
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            return num_tags
        num_tags += 1
        at += 1  # a bytes object ends in a NUL, which ends a name too: no read below goes past it
        is_end = at[0] == c"/"
        at += is_end
        if not _is_letter(at[0]):
            continue
        code = _code(at)
        while not _ends_name(at[0]):  # a `<` within a name begins no tag
            num_tags += at[0] == c"<"
            at += 1
        if is_end:
            _end(nesting, code)
        else:
            num_start_tags[0] += 1
            _start(nesting, code)


cdef int _read_tokens(Nesting* nesting, bytes html) except -1:
    """Take the tags that the tokenizer of HTML gives (HTML standard, 13.2.5), as outside of <svg> and <math>."""
    cdef const unsigned char* at = html
    cdef const unsigned char* end = at + len(html)
    cdef const unsigned char* behind
    cdef uint64_t code
    cdef bint is_end
    cdef int plain
    while True:
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            return 0
        at += 1  # the NUL at the end of a bytes object ends every look ahead
        is_end = at[0] == c"/"
        if not _is_letter(at[is_end]):
            if at[0] == c"!" and at[1] == c"-" and at[2] == c"-":
                at = _after_comment(at + 3, end)
            elif at[0] in b"!?/":
                behind = _after(at, end, c">")
                if at[0] == c"!" and at[1] == c"[" and _may_be_foreign(nesting) and not _is_short_cdata(at, behind):
                    return _count_starts(nesting, at, end)
                at = behind
            continue
        at += is_end
        code = _code(at)
        while at < end and at[0] not in b"\t\n\f\r />":
            if at[0] in b"\v\0":  # part of a name here: no end tag that is known ends it, and it ends none
                code = _CUT
            at += 1
        at = _after_tag(at, end)
        if is_end:
            _end(nesting, code)
            continue
        _start(nesting, code)
        for plain in range(_NUM_PLAIN):
            if code == _PLAIN[plain]:
                behind = _end_of_plain_text(at, end, plain)
                if _may_be_foreign(nesting) and memchr(at, c"<", behind - at) != NULL:
                    return _count_starts(nesting, at, end)
                at = behind
                break


cdef int _count_starts(Nesting* nesting, const unsigned char* at, const unsigned char* end) noexcept:
    """Take what may be a start tag for one that is never answered, from here to the end."""
    while True:
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            return 0
        at += 1
        nesting.depth += _is_letter(at[0])


cdef inline bint _is_short_cdata(const unsigned char* at, const unsigned char* behind) noexcept:
    """Whether a CDATA section that may begin here would end where the next `>` does, and hides no `<`."""
    return (
        behind - at > 3
        and (behind - 1)[0] == c">"
        and (behind - 2)[0] == c"]"
        and (behind - 3)[0] == c"]"
        and memchr(at, c"<", behind - at) == NULL
    )


cdef enum:
    _NUM_PLAIN = 8

cdef uint64_t[_NUM_PLAIN] _PLAIN  # the codes of elements that hold text and no markup
cdef int[_NUM_PLAIN] _PLAIN_LENGTH
_PLAIN_NAMES = (b"script", b"style", b"xmp", b"iframe", b"noembed", b"noframes", b"textarea", b"title")
for _number, _name in enumerate(_PLAIN_NAMES):
    _PLAIN[_number] = int.from_bytes(_name, "little")
    _PLAIN_LENGTH[_number] = len(_name)


cdef inline const unsigned char* _after(
    const unsigned char* at, const unsigned char* end, unsigned char octet
) noexcept:
    """Behind the next such byte, or the end."""
    cdef const unsigned char* found = <const unsigned char*> memchr(at, octet, end - at)
    return end if found == NULL else found + 1


cdef const unsigned char* _after_comment(const unsigned char* at, const unsigned char* end) noexcept:
    """Behind the comment whose content begins here."""
    if at[0] == c">":
        return at + 1
    if at[0] == c"-" and at[1] == c">":
        return at + 2
    while True:
        at = <const unsigned char*> memchr(at, c"-", end - at)
        if at == NULL:
            return end
        if at[1] == c"-" and (at[2] == c">" or (at[2] == c"!" and at[3] == c">")):
            return at + 3 + (at[2] == c"!")
        at += 1


cdef const unsigned char* _after_tag(const unsigned char* at, const unsigned char* end) noexcept:
    """Behind the tag whose name ended here: a `>` in a quoted value does not end it."""
    cdef unsigned char quote
    while at < end:
        if at[0] == c">":
            return at + 1
        if at[0] in b"\t\n\f\r /":
            at += 1
            continue
        at += 1  # the first byte of an attribute's name, which may be an equals sign
        while at < end and at[0] not in b"\t\n\f\r />=":
            at += 1
        while at < end and at[0] in b"\t\n\f\r ":
            at += 1
        if at[0] != c"=":
            continue
        at += 1
        while at < end and at[0] in b"\t\n\f\r ":
            at += 1
        quote = at[0]
        if quote == c'"' or quote == c"'":
            at = _after(at + 1, end, quote)
            continue
        while at < end and at[0] not in b"\t\n\f\r >":
            at += 1
    return end


cdef inline bint _is_name(const unsigned char* at, int plain) noexcept:
    """Whether a whole name begins here, that of this plain text."""
    cdef int place
    for place in range(_PLAIN_LENGTH[plain]):
        if (at[place] | 0x20) != (_PLAIN[plain] >> (8 * place) & 0xff):
            return False
    return at[_PLAIN_LENGTH[plain]] in b"\t\n\f\r />"


cdef const unsigned char* _end_of_plain_text(const unsigned char* at, const unsigned char* end, int plain) noexcept:
    """The end tag of a plain text that begins here, or the end. A script may hold comments with scripts in them, whose
    end tags do not end it (HTML standard, 13.2.5.27 "Script data double escaped state")."""
    cdef bint is_escaped = False, is_double = False, is_script = plain == 0
    while at < end:
        if not is_escaped:
            at = <const unsigned char*> memchr(at, c"<", end - at)
            if at == NULL:
                return end
        if is_escaped and at[0] == c"-" and at[1] == c"-" and at[2] == c">":
            is_escaped = is_double = False
            at += 3
        elif at[0] != c"<":
            at += 1
        elif is_script and not is_escaped and at[1] == c"!" and at[2] == c"-" and at[3] == c"-":
            is_escaped = True
            at += 2  # its dashes may be those of its end
        elif is_script and is_escaped and not is_double and _is_name(at + 1, 0):
            is_double = True
            at += 1
        elif at[1] == c"/" and _is_name(at + 2, plain):
            if not is_double:
                return at
            is_double = False
            at += 1
        else:
            at += 1
    return end


cdef inline bint _is_letter(unsigned char octet) noexcept nogil:
    return c"a" <= (octet | 0x20) <= c"z"


cdef inline bint _ends_name(unsigned char octet) noexcept nogil:
    return octet in b"\t\n\x0b\x0c\r />\0"


cdef inline uint64_t _code(const unsigned char* name) noexcept:
    """The bytes of a name of at most eight, in small letters, zeros after its end; for a longer one what `_long_code`
    gives."""
    cdef uint64_t code = 0
    cdef int place
    for place in range(8):
        if _ends_name(name[place]):
            return code
        code |= <uint64_t> _small(name[place]) << (8 * place)
    return code if _ends_name(name[8]) else _long_code(name)


cdef uint64_t _long_code(const unsigned char* name) noexcept:
    """1 and more for the long names that are known, else _CUT."""
    cdef const unsigned char* known
    cdef Py_ssize_t place
    cdef int number
    for number in range(_NUM_LONG):
        known, place = _LONG[number], 0
        while known[place] and _small(name[place]) == known[place]:
            place += 1
        if not known[place] and _ends_name(name[place]):
            return number + 1
    return _CUT


cdef inline unsigned char _small(unsigned char octet) noexcept:
    return octet | 0x20 if c"A" <= octet <= c"Z" else octet


cdef inline Name* _find(Name* names, uint64_t code) noexcept:
    """The slot of a name, or a free one for it; NULL where those that it may take are taken."""
    cdef Py_ssize_t slot = (code * _ODD) >> (64 - _LOG_SLOTS)
    cdef int probe
    for probe in range(_PROBES):
        if names[slot].code == code or names[slot].code == 0:
            return &names[slot]
        slot = (slot + 1) & (_SLOTS - 1)
    return NULL


cdef enum:
    _NUM_LONG = 5

cdef const unsigned char* _LONG[_NUM_LONG]
cdef bytes _known_name
for _number in range(_NUM_LONG):
    _known_name = _LONG_NAMES[_number]  # the tuple keeps it alive
    _LONG[_number] = _known_name

cdef uint64_t _SVG = _code(b"svg")
cdef uint64_t _MATH = _code(b"math")
cdef uint64_t _FORM = _code(b"form")
cdef Name* _known
memset(_KNOWN, 0, sizeof(_KNOWN))
for _known_name in (*_SPECIAL_NAMES, b"svg", b"math"):
    _known = _find(_KNOWN, _code(_known_name))
    assert _known != NULL and not _known.code, _known_name
    _known.code = _code(_known_name)
    _known.is_special = _known_name not in (b"svg", b"math")
    _known.is_void = _known_name in _VOID_NAMES
