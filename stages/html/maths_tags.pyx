# cython: language_level=3, boundscheck=False, wraparound=False
"""Where a page's formulas may begin: looked for without a pattern, which would be tried at each tag. What holds none is
passed over here: comments, plain text, scripts and images of another kind."""

from cpython.unicode cimport PyUnicode_1BYTE_KIND, PyUnicode_2BYTE_KIND, PyUnicode_DATA, PyUnicode_KIND
from libc.string cimport memcpy, memset
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "Python.h":
    bint Py_UNICODE_ISSPACE(Py_UCS4 character) noexcept nogil

cdef extern from *:
    int _lowest "__builtin_ctzll"(uint64_t bits) noexcept nogil

ctypedef fused Unit:
    uint8_t
    uint16_t
    uint32_t

cdef enum:
    _BLOCK = 64  # characters that are compared together
    _LONGEST = 8  # of a name's characters that its code holds
    _OF_WRAPPER = 2_000  # characters of a tag in which the classes of what is wrapped around a formula are looked for

_MATHS = ("math", "m:math", "mml:math")
_RAISED = ("sup", "sub")
_PLAIN = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")  # up to their end tags
_OTHER = ("span", "div")
_CONTAINER = "mjx-container"
cdef const char* _CONTAINER_BYTES = b"mjx-container"

cdef enum:
    _NUM_NAMES = 16

cdef uint64_t[_NUM_NAMES] _CODES
cdef tuple _NAMES = (*_MATHS, *_RAISED, "img", *_PLAIN, *_OTHER)
assert len(_NAMES) == _NUM_NAMES
for _number, _name in enumerate(_NAMES):
    _CODES[_number] = int.from_bytes(_name.encode(), "little")
cdef int _SPAN = _NAMES.index("span"), _DIV = _NAMES.index("div"), _IMG = _NAMES.index("img")
cdef int _SCRIPT = _NAMES.index(_PLAIN[0]), _LAST_PLAIN = _SCRIPT + len(_PLAIN) - 1
cdef uint64_t _CONTAINER_CODE = int.from_bytes(_CONTAINER[:_LONGEST].encode(), "little")
cdef bint[128] _BEGINS  # a name of these, or a comment
for _number in range(128):
    _BEGINS[_number] = chr(_number).lower() in {"!", *(name[0] for name in _NAMES)}


def next_tag(str html not None, Py_ssize_t at):
    cdef Py_ssize_t length = len(html), end = 0
    cdef void* data = PyUnicode_DATA(html)
    cdef int number
    if PyUnicode_KIND(html) == PyUnicode_1BYTE_KIND:
        number = _next_tag(<const uint8_t*> data, &at, length, &end)
    elif PyUnicode_KIND(html) == PyUnicode_2BYTE_KIND:
        number = _next_tag(<const uint16_t*> data, &at, length, &end)
    else:
        number = _next_tag(<const uint32_t*> data, &at, length, &end)
    return None if number == -1 else (_CONTAINER if number == _NUM_NAMES else _NAMES[number], at, end)


cdef int _next_tag(const Unit* html, Py_ssize_t* at, Py_ssize_t length, Py_ssize_t* end) noexcept nogil:
    """The number of the next name, its `<` and its end; -1 where there is none."""
    cdef Py_ssize_t begin = at[0], behind
    cdef int number
    cdef uint64_t signs
    while begin < length:
        signs = _signs(html + begin, min(length - begin, _BLOCK))
        behind = begin + _BLOCK
        while signs:
            at[0] = begin + _lowest(signs)
            signs &= signs - 1
            number = _name_at(html, at[0] + 1, length, end)
            if number < 0:
                continue
            if number > _NUM_NAMES:
                behind = _after_comment(html, at[0] + 2, length)
            elif number == _SPAN or number == _DIV:
                if _names_wrapper(html, end[0], length):
                    return number
                continue
            elif number == _IMG or _SCRIPT <= number <= _LAST_PLAIN:
                behind = _after_tag(html, end[0], length)
                if number == _IMG and _may_show_tex(html + end[0], html + behind):
                    return number
                if number == _SCRIPT and _holds(html + end[0], html + behind, b"math/tex"):
                    return number
                if number != _IMG and behind < length:
                    behind = _end_of_plain_text(html, behind, length, number)
            else:
                return number
            break
        begin = behind
    return -1


cdef Py_ssize_t _after_comment(const Unit* html, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """Behind the next `-->`, or the end."""
    while at + 2 < length:
        if html[at + 2] == c">" and html[at + 1] == c"-" and html[at] == c"-":
            return at + 3
        # No such sign can begin before a character that is none of it.
        at += 1 if html[at + 2] == c"-" or html[at + 2] == c">" else 3
    return length


cdef Py_ssize_t _after_tag(const Unit* html, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """Behind the tag whose name ends here, or the end: as `_TAG_END` of `stages.html.maths`, a quote that is not closed
    is none."""
    cdef Py_ssize_t close
    while at < length:
        if html[at] == c">":
            return at + 1
        if html[at] != c"=":
            at += 1
            continue
        at += 1
        while at < length and Py_UNICODE_ISSPACE(html[at]):
            at += 1
        if at < length and (html[at] == c'"' or html[at] == c"'"):
            close = at + 1
            while close < length and html[close] != html[at]:
                close += 1
            at = close + 1 if close < length else at + 1
    return length


cdef Py_ssize_t _end_of_plain_text(const Unit* html, Py_ssize_t at, Py_ssize_t length, int number) noexcept nogil:
    """Behind the name of the end tag of a plain text that begins here, or the end."""
    cdef uint64_t signs
    cdef Py_ssize_t end = 0, begin
    while at < length:
        signs = _signs(html + at, min(length - at, _BLOCK))
        while signs:
            begin = at + _lowest(signs) + 1
            signs &= signs - 1
            if begin < length and html[begin] == c"/" and _name_at(html, begin + 1, length, &end) == number:
                return end
        at += _BLOCK
    return length


cdef inline bint _may_show_tex(const Unit* at, const Unit* end) noexcept nogil:
    return _holds(at, end, b"tex") or _holds(at, end, b"mwe-math")


cdef bint _holds(const Unit* at, const Unit* end, const char* small) noexcept nogil:
    """Whether a text in small letters is in a tag, whatever its case there."""
    while at < end:
        if (at[0] | 0x20) == small[0] and _begins(at, end - at, small):
            return True
        at += 1
    return False


cdef inline uint64_t _signs(const Unit* html, Py_ssize_t length) noexcept nogil:
    """Which of these characters, at most _BLOCK, are `<`: one bit for each."""
    cdef uint8_t[_BLOCK] are
    cdef uint64_t signs = 0, eight
    cdef Py_ssize_t place
    if length < _BLOCK:
        memset(are, 0, _BLOCK)
        for place in range(length):
            are[place] = html[place] == c"<"
    else:
        for place in range(_BLOCK):
            are[place] = html[place] == c"<"
    for place in range(_BLOCK // 8):
        memcpy(&eight, are + 8 * place, 8)
        if eight:
            # Gathers the lowest bit of each byte, the first byte's in the lowest place.
            signs |= ((eight * <uint64_t> 0x0102040810204080) >> 56) << (8 * place)
    return signs


cdef int _name_at(const Unit* html, Py_ssize_t at, Py_ssize_t length, Py_ssize_t* end) noexcept nogil:
    """The number of the name that begins here, one of _NAMES; _NUM_NAMES for _CONTAINER, one more for a comment; -1 for
    none of them."""
    cdef uint64_t code = 0
    cdef Py_ssize_t place = at
    cdef uint32_t unit
    cdef int number
    if at >= length or html[at] >= 128 or not _BEGINS[html[at]]:
        return -1
    if html[at] == c"!":
        end[0] = at + 3
        return _NUM_NAMES + 1 if at + 2 < length and html[at + 1] == c"-" and html[at + 2] == c"-" else -1
    while place < length and not _ends_name(html[place]):
        unit = html[place]
        if unit >= 128 or place - at == _LONGEST and code != _CONTAINER_CODE:
            return -1
        if c"A" <= unit <= c"Z":
            unit |= 0x20
        if place - at < _LONGEST:
            code |= <uint64_t> unit << (8 * (place - at))
        elif place - at >= 13 or unit != _CONTAINER_BYTES[place - at]:
            return -1
        place += 1
    if place == length:
        return -1
    end[0] = place
    if code == _CONTAINER_CODE:
        return _NUM_NAMES if place - at == 13 else -1
    for number in range(_NUM_NAMES):
        if code == _CODES[number]:
            return number
    return -1


cdef inline bint _ends_name(uint32_t unit) noexcept nogil:
    return unit == c">" or unit == c"/" or Py_UNICODE_ISSPACE(unit)


cdef inline bint _begins(const Unit* html, Py_ssize_t left, const char* small) noexcept nogil:
    """Whether the characters here are those of a text in small letters, whatever their case."""
    cdef Py_ssize_t place = 0
    while small[place]:
        if place >= left or (html[place] | 0x20) != small[place]:
            return False
        place += 1
    return True


cdef bint _names_wrapper(const Unit* html, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """Whether a tag may have a class of what is wrapped around formulas: the names are anywhere in it."""
    cdef Py_ssize_t end = min(length, at + _OF_WRAPPER)
    cdef uint32_t quote = 0
    while at < end:
        if quote:
            if html[at] == quote:
                quote = 0
        elif html[at] == c">":
            return False
        elif html[at] == c'"' or html[at] == c"'":
            quote = html[at]
        if (html[at] | 0x20) == c"k" and _begins(html + at, length - at, b"katex"):
            return True
        if (html[at] | 0x20) == c"m" and (
            _begins(html + at, length - at, b"mathjax")
            or _begins(html + at, length - at, b"mjx")
            or _begins(html + at, length - at, b"mwe-math")
        ):
            return True
        at += 1
    return False
