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
# begin alike, are passed over; a name without a slot counts as never ended.
def markup_bounds(bytes html not None):
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
            return num_tags, depth
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
        if name == NULL:  # no room: as if it were never ended, which makes the sum larger at most
            depth += 1
            continue
        name.code = code
        name.open += 1
        if name.open > name.most:
            name.most = name.open
            depth += 1


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
