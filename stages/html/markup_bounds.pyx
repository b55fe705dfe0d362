# cython: language_level=3, boundscheck=False, wraparound=False
"""How big and how deep a page's markup is at most, in one pass over its bytes: this is asked of every page."""

from libc.stdint cimport uint64_t
from libc.string cimport memchr, memset

cdef enum:
    _LOG_SLOTS = 10
    _SLOTS = 1 << _LOG_SLOTS
    _PROBES = 16

cdef uint64_t _ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiplying by it spreads a name over the high bits (Knuth, TAOCP 3, 6.4)."""

cdef struct Name:
    uint64_t code  # the first eight bytes of an element's name; 0: a free slot
    Py_ssize_t open  # start tags that no end tag has answered yet
    Py_ssize_t most  # the most of those so far


# Why the sum is a bound, for a parser in which an end tag ends an element of its name where one is open. By induction
# over the tags a name's `open` is never below the number of its open elements: a start tag adds one to both, an end tag
# takes at most one from both, and an element that ends without a tag of its own lowers only the true number. So `most`
# is at least the most open elements of that name at any moment, and the sum over the names at least the nesting. Two
# departures make the sum larger at most: end tags of names beyond eight bytes, which share a slot with all names that
# begin alike, are passed over; a name without a slot counts as never ended. One makes it smaller: HTML passes over the
# end tag of an inline element behind an open block, so that markup made for it may nest some times deeper.
#
# Which end tags a parser sees is another question: not those in comments, in values of attributes and in elements whose
# content is plain text. Inside <svg> it takes the content of these for markup. So the markup is read both ways, and the
# larger sum counts.
def markup_bounds(bytes html not None, Py_ssize_t limit):
    cdef Py_ssize_t num_tags, num_start_tags = 0, of_all = _bound_of_all(html, &num_tags, &num_start_tags)
    if num_start_tags <= limit:  # whatever hides their end tags
        return num_tags, of_all
    return num_tags, max(of_all, _bound_of_tokens(html))


cdef Py_ssize_t _bound_of_all(bytes html, Py_ssize_t* num_tags_out, Py_ssize_t* num_start_tags):
    """The sum over everything that looks like a tag, wherever it stands; the number of `<`, and that of start tags."""
    cdef const unsigned char* at = html
    cdef const unsigned char* end = at + len(html)
    cdef Name[_SLOTS] names
    cdef Name* name
    cdef uint64_t code
    cdef bint is_end, is_cut
    cdef Py_ssize_t num_tags = 0, depth = 0
    memset(names, 0, sizeof(names))
    while True:
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            num_tags_out[0] = num_tags
            return depth
        num_tags += 1
        at += 1  # a bytes object ends in a NUL, which ends a name too: no read below goes past it
        is_end = at[0] == c"/"
        at += is_end
        if not _is_letter(at[0]):
            continue
        code = _code(at, &is_cut)
        while not _ends_name(at[0]):  # a `<` within a name begins no tag
            num_tags += at[0] == c"<"
            at += 1
        name = _find(names, code)
        if is_end:
            # What is cut off here may be another name than that of a start tag which looks alike: it ends nothing.
            if not is_cut and name != NULL and name.open > 0:
                name.open -= 1
            continue
        num_start_tags[0] += 1
        if name == NULL:  # no room: as if it were never ended, which makes the sum larger at most
            depth += 1
            continue
        name.code = code
        name.open += 1
        if name.open > name.most:
            name.most = name.open
            depth += 1


cdef Py_ssize_t _bound_of_tokens(bytes html):
    """The sum over the tags that the tokenizer of HTML gives (HTML standard, 13.2.5), outside of <svg> and <math>."""
    cdef const unsigned char* at = html
    cdef const unsigned char* end = at + len(html)
    cdef Name[_SLOTS] names
    cdef Name* name
    cdef uint64_t code
    cdef bint is_end, is_cut, is_odd
    cdef int plain
    cdef Py_ssize_t length, depth = 0
    memset(names, 0, sizeof(names))
    while True:
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            return depth
        at += 1  # the NUL at the end of a bytes object ends every look ahead
        is_end = at[0] == c"/"
        if not _is_letter(at[is_end]):
            if at[0] == c"!" and at[1] == c"-" and at[2] == c"-":
                at = _after_comment(at + 3, end)
            elif at[0] in b"!?/":
                at = _after(at, end, c">")
            continue
        at += is_end
        code = _code(at, &is_cut)
        length, is_odd = 0, False
        while at < end and at[0] not in b"\t\n\f\r />":
            if at[0] in b"\v\0":  # they are part of a name here: no end tag that is known ends it, and it ends none
                is_odd = True
            at += 1
            length += 1
        at = _after_tag(at, end)
        name = _find(names, code)
        if is_end:
            if not is_cut and not is_odd and name != NULL and name.open > 0:
                name.open -= 1
            continue
        if name == NULL or is_odd:
            depth += 1
        else:
            name.code = code
            name.open += 1
            if name.open > name.most:
                name.most = name.open
                depth += 1
        for plain in range(_NUM_PLAIN):
            if length == _PLAIN_LENGTH[plain] and code | _LOWER[plain] == _PLAIN[plain]:
                at = _end_of_plain_text(at, end, plain)
                break


cdef enum:
    _NUM_PLAIN = 8

cdef uint64_t[_NUM_PLAIN] _PLAIN  # the codes of elements that hold text and no markup
cdef uint64_t[_NUM_PLAIN] _LOWER  # what makes their letters small ones
cdef int[_NUM_PLAIN] _PLAIN_LENGTH
_PLAIN_NAMES = (b"script", b"style", b"xmp", b"iframe", b"noembed", b"noframes", b"textarea", b"title")
for _number, _name in enumerate(_PLAIN_NAMES):
    _PLAIN[_number] = int.from_bytes(_name, "little")
    _LOWER[_number] = int.from_bytes(b" " * len(_name), "little")
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


cdef inline uint64_t _code(const unsigned char* name, bint* is_cut) noexcept nogil:
    """The first eight bytes of a name, zeros after its end; whether it is longer."""
    cdef uint64_t code = 0
    cdef int place
    for place in range(8):
        if _ends_name(name[place]):
            is_cut[0] = False
            return code
        code |= <uint64_t> name[place] << (8 * place)
    is_cut[0] = True
    return code


cdef inline Name* _find(Name* names, uint64_t code) noexcept nogil:
    """The slot of a name, or a free one for it; NULL where those that it may take are taken."""
    cdef Py_ssize_t slot = (code * _ODD) >> (64 - _LOG_SLOTS)
    cdef int probe
    for probe in range(_PROBES):
        if names[slot].code == code or names[slot].code == 0:
            return &names[slot]
        slot = (slot + 1) & (_SLOTS - 1)
    return NULL
