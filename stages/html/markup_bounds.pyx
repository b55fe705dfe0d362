# cython: language_level=3, boundscheck=False, wraparound=False
"""What a page's markup makes of a parser's tree at most: how big and how deep; whether it may hold formulas; and what
is in its head alone. This is asked of every page."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "<string.h>":
    void* memmem(const void* text, size_t length, const void* part, size_t length_of_part) noexcept

cdef enum:
    _LOG_SLOTS = 10
    _SLOTS = 1 << _LOG_SLOTS
    _PROBES = 16
    _CUT = 0  # the code of a name that is too long to have one
    _ARK = 3  # start tags alike that a parser opens again (HTML standard, 13.2.4.3, "Noah's Ark clause")
    _ADOPTIONS = 8  # rounds of the adoption agency for one end tag (HTML standard, 13.2.6.4.7)
    _BYTES_OF_ONE = 128  # of a formatting element's tag: a copy of it counts once more for each of them
    _WALKS = 8  # over the bytes of a page of which each may be part of several tags

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
_FORMATTING_NAMES = b"a b big code em font i nobr s small strike strong tt u".split()
"""The formatting elements (HTML standard, 13.2.4.2): a parser opens them again behind the block that they were open in."""
_UNWRAPPED_NAMES = b"dialog rb rp rt rtc".split()
"""Those besides the special ones at whose start tags a parser does not open formatting elements again."""
_LONG_NAMES = (b"annotation-xml", b"blockquote", b"figcaption", b"foreignobject", b"plaintext")
"""Those of more than eight bytes: their codes are 1 to 5."""

cdef struct Name:  # small, since each page begins with a fresh table of them; a page of 6 GB fills no int
    uint64_t code  # the name's bytes, at most eight; 0: a free slot
    unsigned char is_special
    unsigned char is_void
    unsigned char is_formatting
    unsigned char is_block  # special, or of the unwrapped ones
    int open  # start tags that no end tag has answered yet
    int most  # the most of those so far
    int last  # the last of them, in Nesting.starts; -1: none

cdef struct Start:
    uint64_t code
    Py_ssize_t before  # of the same name; -1: none
    Py_ssize_t within  # the last special element on the stack when it came, in Nesting.starts; -1: none
    Py_ssize_t disorders
    Py_ssize_t num_formatting  # unanswered start tags of formatting elements that it came behind
    Py_ssize_t num_blocks
    Tag* tag  # of a formatting element but `a`; NULL: not kept

cdef struct Tag:
    const unsigned char* text  # behind `<`
    Py_ssize_t length
    Py_ssize_t open  # start tags that read like this and are unanswered

cdef struct Nesting:
    Name[_SLOTS] names
    Tag[_SLOTS] tags  # of formatting elements but `a`
    Start* starts
    Py_ssize_t num_starts
    Py_ssize_t room
    Py_ssize_t* stack  # special elements that nest in one another, as their tags say: places in `starts`
    Py_ssize_t height
    Py_ssize_t disorders  # end tags of special elements that were not the last on the stack
    Py_ssize_t depth
    Py_ssize_t num_attributes  # the most of one tag
    Py_ssize_t num_options  # start tags of options since a <select> may be open
    Py_ssize_t most_options
    bint may_hold_maths
    Py_ssize_t num_formatting  # unanswered start tags of formatting elements
    Py_ssize_t anchor  # the weight of the heaviest start tag of `a`
    Py_ssize_t num_blocks  # tags of blocks
    Py_ssize_t weight  # of the formatting elements that a parser may have to open again
    Py_ssize_t reopened  # the weights of those that it did open again

cdef Name[_SLOTS] _KNOWN  # the names that something is known of, in their slots


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
# Options count from the first <select> that is unanswered to where all of them are answered: only there is it certain
# that a parser has none open, since one may hold a template in which its end tag is passed over.
#
# Which tags a parser sees is another question. It sees none in comments, in values of attributes and in elements whose
# content is plain text. Inside <svg> and <select> it takes the content of some of these for markup, and inside <svg>
# there are CDATA sections. Where it cannot be told whether one of them is open and it matters, everything that looks
# like a tag counts from there on, and no start tag is answered.
#
# What is in the head alone: what follows its start tag, while there is nothing but white space, comments and elements
# that a parser puts there. It makes nothing else of them, so that without them the page's body is the same. None of
# them is sure to have ended where a <noscript> is open, so it ends before that one.
#
# Why formatting elements count more than once. One that is open where its block ends is opened again behind it, with
# its attributes, and all of them in every later block (HTML standard, 13.2.4.3, "Reconstruct the active formatting
# elements"): 600 of them before 10,000 paragraphs make six million elements. Each is put off the parser's stack before,
# which only tags do: those of blocks, and end tags of what it stands in. So at each such tag all that may be in the
# parser's list of active formatting elements is added up. These are the unanswered start tags, of those that read alike
# at most three, and of `a` at most one. An end tag that lets nothing but itself off the stack adds nothing: no
# formatting element has begun within its element and is unanswered, and no block has.
def markup_bounds(bytes html not None, list head=None):
    cdef Nesting nesting
    nesting.starts, nesting.stack, nesting.room = NULL, NULL, 0
    nesting.num_starts = nesting.height = nesting.disorders = nesting.depth = 0
    nesting.num_attributes = nesting.num_options = nesting.most_options = nesting.num_formatting = nesting.anchor = nesting.num_blocks = 0
    nesting.weight = nesting.reopened = 0
    nesting.may_hold_maths = False
    memcpy(nesting.names, _KNOWN, sizeof(_KNOWN))
    memset(nesting.tags, 0, sizeof(nesting.tags))
    try:
        _read_tokens(&nesting, html, head)
        may_hold_maths = nesting.may_hold_maths or _holds_fraction_slash(html)
        return (
            _count(html), nesting.depth, nesting.reopened, nesting.num_attributes, nesting.most_options, may_hold_maths
        )
    finally:
        free(nesting.starts)
        free(nesting.stack)


cdef Py_ssize_t _count(bytes html) noexcept:
    """The number of `<`."""
    cdef const unsigned char* at = html
    cdef Py_ssize_t left = len(html), number = 0
    cdef int place, num_bytes
    cdef unsigned char few
    while left:
        # Sums that one byte holds: the compiler makes instructions over many bytes of that.
        num_bytes = <int> min(left, 240)
        few = 0
        for place in range(num_bytes):
            few += at[place] == c"<"
        number += few
        at += num_bytes
        left -= num_bytes
    return number


cdef int _start(Nesting* nesting, uint64_t code, const unsigned char* text, Py_ssize_t length) except -1:
    """A start tag, and what stands between its `<` and its `>`; MemoryError if there is no room for it."""
    cdef Name* name = NULL if code == _CUT else _find(nesting.names, code)
    cdef Start* start
    if name == NULL:  # as if it were never ended, which makes the sum larger at most
        nesting.depth += 1
        return 0
    name.code = code
    if code == _OPTION:
        _count_option(nesting)
    if name.is_block:
        nesting.num_blocks += 1
        nesting.reopened += nesting.weight
    if name.is_void and not _may_be_foreign(nesting):
        if not name.most:
            name.most = 1
            nesting.depth += 1
        return 0
    if nesting.num_starts == nesting.room:
        _make_room(nesting)
    if not name.open:
        name.last = -1
    start = &nesting.starts[nesting.num_starts]
    start[0] = Start(
        code, name.last, _within(nesting), nesting.disorders, nesting.num_formatting, nesting.num_blocks, NULL
    )
    if name.is_formatting:
        if name.open and (code == _A or code == _NOBR):  # it ends the one that is open
            _let_go(nesting, &nesting.starts[name.last], _ADOPTIONS)
        start.tag = _begin_formatting(nesting, name, text, length)
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
    if name == NULL:
        nesting.reopened += nesting.weight
        return
    if not name.code:
        return
    if name.is_block:
        nesting.num_blocks += 1
        nesting.reopened += nesting.weight
    if name.is_special:
        if not nesting.height or nesting.starts[_within(nesting)].code != code:
            nesting.height = 0
            nesting.disorders += 1
            return
        nesting.height -= 1
    if not name.open or code == _FORM:
        return
    start = &nesting.starts[name.last]
    if start.within != _within(nesting) or start.disorders != nesting.disorders:
        nesting.reopened += nesting.weight * (_ADOPTIONS if name.is_formatting else 1)
        return
    name.open -= 1
    name.last = start.before
    if code == _SELECT and not name.open:
        nesting.num_options = 0
    if name.is_formatting:
        _end_formatting(nesting, name, start.tag)
    if not name.is_block:
        _let_go(nesting, start, 1)


cdef inline void _let_go(Nesting* nesting, Start* start, int times) noexcept:
    """The end of an element that is no block lets off the parser's stack what came behind its start."""
    if nesting.num_blocks != start.num_blocks:
        nesting.reopened += nesting.weight * times
    elif nesting.num_formatting > start.num_formatting:
        nesting.reopened += nesting.weight


cdef Tag* _begin_formatting(Nesting* nesting, Name* name, const unsigned char* text, Py_ssize_t length) noexcept:
    """Take a start tag of a formatting element into the list of the active ones; what it reads like, if that is kept."""
    cdef Py_ssize_t weight = _weight(length)
    cdef Tag* tag
    nesting.num_formatting += 1
    if name.code == _A:
        # Which one of several is in the list is not known: as if it were the heaviest so far.
        if name.open:
            nesting.weight += max(weight - nesting.anchor, 0)
        nesting.anchor = max(weight, nesting.anchor)
        if not name.open:
            nesting.weight += nesting.anchor
        return NULL
    tag = _find_tag(nesting.tags, text, length)
    if tag == NULL or tag.open < _ARK:
        nesting.weight += weight
    if tag != NULL:
        tag.open += 1
    return tag


cdef void _end_formatting(Nesting* nesting, Name* name, Tag* tag) noexcept:
    """Take an element that an end tag has answered out of the list of the active formatting elements."""
    nesting.num_formatting -= 1
    if name.code == _A:
        if not name.open:
            nesting.weight -= nesting.anchor
    elif tag != NULL:
        tag.open -= 1
        if tag.open < _ARK:
            nesting.weight -= _weight(tag.length)


cdef inline void _count_option(Nesting* nesting) noexcept:
    """Take the start tag of an option, if a <select> may be open."""
    if _find(nesting.names, _SELECT).open > 0:
        nesting.num_options += 1
        nesting.most_options = max(nesting.most_options, nesting.num_options)


cdef inline Py_ssize_t _weight(Py_ssize_t length) noexcept:
    return 1 + length // _BYTES_OF_ONE


cdef Tag* _find_tag(Tag* tags, const unsigned char* text, Py_ssize_t length) noexcept:
    """The slot of what a start tag reads like, or a free one for it; NULL where those that it may take are taken."""
    cdef uint64_t key = 0
    cdef Py_ssize_t place, slot
    cdef int probe
    for place in range(length):
        key = (key ^ text[place]) * _ODD
    slot = key >> (64 - _LOG_SLOTS)
    for probe in range(_PROBES):
        if tags[slot].text == NULL:
            tags[slot] = Tag(text, length, 0)
        if tags[slot].length == length and memcmp(tags[slot].text, text, length) == 0:
            return &tags[slot]
        slot = (slot + 1) & (_SLOTS - 1)
    return NULL


cdef inline Py_ssize_t _within(Nesting* nesting) noexcept:
    return nesting.stack[nesting.height - 1] if nesting.height else -1


cdef inline bint _may_be_foreign(Nesting* nesting) noexcept:
    """Whether <svg> or <math> may be open, in which other rules hold."""
    return _find(nesting.names, _SVG).open > 0 or _find(nesting.names, _MATH).open > 0


cdef inline bint _may_be_markup(Nesting* nesting, int plain) noexcept:
    """Whether a parser may take the content of this plain text for markup: in <frameset> it passes
    over their start tags, and in <select> over those of all but script and textarea (HTML standard, 13.2.6.4.16)."""
    if _may_be_foreign(nesting) or _find(nesting.names, _FRAMESET).open > 0:
        return True
    return _find(nesting.names, _SELECT).open > 0 and _PLAIN[plain] != _SCRIPT and _PLAIN[plain] != _TEXTAREA


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


cdef int _read_tokens(Nesting* nesting, bytes html, list head) except -1:
    """Take the tags that the tokenizer of HTML gives (HTML standard, 13.2.5), as outside of <svg> and <math>."""
    cdef const unsigned char* at = html
    cdef const unsigned char* end = at + len(html)
    cdef const unsigned char* behind
    cdef const unsigned char* begin
    cdef const unsigned char* begin_of_head = NULL
    cdef const unsigned char* noscript = NULL
    cdef uint64_t code
    cdef bint is_end, is_before_body = head is not None
    cdef int plain
    while True:
        begin = at
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            return 0
        at += 1  # the NUL at the end of a bytes object ends every look ahead
        is_end = at[0] == c"/"
        if is_before_body and not _goes_on_before_body(begin, at, begin_of_head != NULL):
            is_before_body = False
            if begin_of_head != NULL:
                # In a <noscript> that is open a parser passes over other end tags than behind it.
                _note_head(head, html, begin_of_head, begin if noscript == NULL else noscript)
        if not _is_letter(at[is_end]):
            if at[0] == c"!" and at[1] == c"-" and at[2] == c"-":
                at = _after_comment(at + 3, end)
            elif at[0] in b"!?/":
                behind = _after(at, end, c">")
                if at[0] == c"!" and at[1] == c"[" and _may_be_foreign(nesting) and not _is_short_cdata(at, behind):
                    return _count_starts(nesting, at, end)
                at = behind
            continue
        if is_before_body and _code(at + is_end) == _NOSCRIPT and (is_end or noscript == NULL):
            noscript = NULL if is_end else at - 1
        at += is_end
        begin = at
        code = _code(at)
        while not _ENDS_NAME[at[0]] and at < end:
            if at[0] in b"\v\0":  # part of a name here: no end tag that is known ends it, and it ends none
                code = _CUT
            at += 1
        behind = _after_tag(nesting, at, end)
        if is_end:
            at = behind
            _end(nesting, code)
            continue
        if not nesting.may_hold_maths:
            nesting.may_hold_maths = _may_be_maths(code, at, behind)
        at = behind
        if is_before_body and code == _HEAD:
            begin_of_head = at
        _start(nesting, code, begin, at - begin)
        for plain in range(_NUM_PLAIN):
            if code == _PLAIN[plain]:
                behind = _end_of_plain_text(at, end, plain)
                if _may_be_markup(nesting, plain) and memchr(at, c"<", behind - at) != NULL:
                    return _count_starts(nesting, at, end)
                at = behind
                break


cdef bint _goes_on_before_body(const unsigned char* text, const unsigned char* tag, bint is_in_head) noexcept:
    """Whether a parser that is in a page's head, or before it, stays there for a text and the tag or comment whose `<`
    is behind it (HTML standard, 13.2.6.4.1 to 13.2.6.4.5). The end tag of the head counts as the first of the body."""
    cdef uint64_t code
    cdef bint is_end = tag[0] == c"/"
    while text < tag - 1:
        if not _is_space(text[0]):
            return False
        text += 1
    if tag[0] == c"!" or tag[0] == c"?":  # a comment, or as one
        return True
    if not _is_letter(tag[is_end]):
        return False
    tag += is_end
    code = _code(tag)
    while not _ends_name(tag[0]):
        tag += 1
    if not _ENDS_NAME[tag[0]]:  # part of another name
        return False
    if not is_in_head:
        return not is_end and (code == _HTML or code == _HEAD)
    return (
        code == _SCRIPT or code == _STYLE or code == _TITLE or code == _META or code == _LINK or code == _BASE
        or code == _NOSCRIPT
    )


cdef int _note_head(list head, bytes html, const unsigned char* begin, const unsigned char* end) except -1:
    """Add where what is in the head begins and ends, in characters."""
    cdef const unsigned char* page = html
    cdef Py_ssize_t num_before = _num_chars(page, begin - page)
    head.append((num_before, num_before + _num_chars(begin, end - begin)))
    return 0


cdef Py_ssize_t _num_chars(const unsigned char* at, Py_ssize_t left) noexcept:
    """The characters that begin in some bytes of UTF-8."""
    cdef Py_ssize_t number = 0
    cdef int place, num_bytes
    cdef unsigned char few
    while left:
        num_bytes = <int> min(left, 240)  # as in _count
        few = 0
        for place in range(num_bytes):
            few += (at[place] & 0xc0) != 0x80
        number += few
        at += num_bytes
        left -= num_bytes
    return number


cdef int _count_starts(Nesting* nesting, const unsigned char* at, const unsigned char* end) noexcept:
    """Take what may be a tag for one from here to the end, and start tags for such that are never answered."""
    cdef const unsigned char* behind
    cdef Py_ssize_t left = _WALKS * (end - at)
    cdef bint is_end
    cdef Name* name
    nesting.may_hold_maths = True  # what of it is a tag is not known
    while True:
        at = <const unsigned char*> memchr(at, c"<", end - at)
        if at == NULL:
            return 0
        at += 1
        is_end = at[0] == c"/"
        if not _is_letter(at[is_end]):
            continue
        behind = at + is_end
        while not _ends_name(behind[0]):
            behind += 1
        if left > 0:
            behind = _after_tag(nesting, behind, end)
            left -= behind - at
        else:  # more of them than bytes there cannot be
            nesting.num_attributes = max(nesting.num_attributes, end - at)
        name = _find(nesting.names, _code(at + is_end))
        if name != NULL and name.is_formatting:
            nesting.reopened += nesting.weight * _ADOPTIONS
        else:
            nesting.reopened += nesting.weight
        if is_end:
            continue
        nesting.depth += 1
        if name != NULL and name.is_formatting:
            _begin_formatting(nesting, name, at, behind - at)
            name.open += 1
        elif name != NULL and name.code == _SELECT:
            name.open += 1
        elif name != NULL and _code(at) == _OPTION:
            _count_option(nesting)


cdef inline bint _may_be_maths(uint64_t code, const unsigned char* at, const unsigned char* end) noexcept:
    """Whether a start tag, whose attributes are from `at` to `end`, may be of what `stages.html.maths` rewrites."""
    if code == _SUP or code == _SUB or code == _MATH or code == _M_MATH or code == _MML_MATH:
        return True
    if code == _SCRIPT:
        return memmem(at, end - at, b"math/tex", 8) != NULL
    return code == _IMG and (memmem(at, end - at, b"mwe-math", 8) != NULL or _names_tex(at, end))


cdef bint _names_tex(const unsigned char* at, const unsigned char* end) noexcept:
    """Whether `tex` or `latex` stands there as a word. Looked for by its rarest letter."""
    cdef const unsigned char* begin = at
    while True:
        at = <const unsigned char*> memchr(at, c"x", end - at)
        if at == NULL:
            return False
        if at - begin > 2 and (at - 1)[0] == c"e" and (at - 2)[0] == c"t" and not _is_of_word(at[1]):
            if not _is_of_word((at - 3)[0]):
                return True
            if at - begin > 4 and (at - 3)[0] == c"a" and (at - 4)[0] == c"l" and not _is_of_word((at - 5)[0]):
                return True
        at += 1


cdef inline bint _begins(const unsigned char* at, const char* small) noexcept:
    """The NUL at the end of a page ends what is compared."""
    while small[0] and (at[0] | 0x20) == small[0]:
        at += 1
        small += 1
    return small[0] == 0


cdef inline bint _is_of_word(unsigned char octet) noexcept:
    return _is_letter(octet) or c"0" <= octet <= c"9" or octet == c"_" or octet >= 128


cdef bint _holds_fraction_slash(bytes html) noexcept:
    """Whether U+2044 is in a page, or an entity for it."""
    cdef const unsigned char* begin = html
    cdef const unsigned char* end = begin + len(html)
    cdef const unsigned char* at = begin
    while True:
        at = <const unsigned char*> memchr(at, 0xE2, end - at)
        if at == NULL:
            break
        if at[1] == 0x81 and at[2] == 0x84:
            return True
        at += 1
    at = begin
    while True:
        at = <const unsigned char*> memchr(at, c"&", end - at)
        if at == NULL:
            return False
        at += 1
        if at[0] == c"#":
            if _begins(at + 1, b"8260;") or _begins(at + 1, b"x2044;"):
                return True
        elif _begins(at, b"frasl;"):
            return True


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


cdef const unsigned char* _after_tag(Nesting* nesting, const unsigned char* at, const unsigned char* end) noexcept:
    """Behind the tag whose name ended here: a `>` in a quoted value does not end it. Its attributes are counted."""
    cdef Py_ssize_t num_attributes = 0
    while at < end:
        if at[0] == c">":
            at += 1
            break
        if _ENDS_NAME[at[0]]:
            at += 1
            continue
        num_attributes += 1
        at += 1  # the first byte of an attribute's name, which may be an equals sign
        while not _ENDS_ATTRIBUTE[at[0]] or (at[0] == 0 and at < end):
            at += 1
        while _is_space(at[0]):
            at += 1
        if at[0] != c"=":
            continue
        at += 1
        while _is_space(at[0]):
            at += 1
        if at[0] == c'"' or at[0] == c"'":
            at = _after(at + 1, end, at[0])
            continue
        while at < end and at[0] != c">" and not _is_space(at[0]):
            at += 1
    if num_attributes > nesting.num_attributes:
        nesting.num_attributes = num_attributes
    return at


cdef inline bint _is_space(unsigned char octet) noexcept:
    return octet in b"\t\n\f\r "


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


cdef bint[256] _ENDS_NAME  # of a tag, to the tokenizer
cdef bint[256] _ENDS_ATTRIBUTE  # the name of one; or the page, where it is a NUL
for _number in range(256):
    _ENDS_NAME[_number] = _number in b"\t\n\f\r />"
    _ENDS_ATTRIBUTE[_number] = _number in b"\t\n\f\r />=\0"

cdef enum:
    _NUM_LONG = 5

cdef const unsigned char* _LONG[_NUM_LONG]
cdef bytes _known_name
for _number in range(_NUM_LONG):
    _known_name = _LONG_NAMES[_number]  # the tuple keeps it alive
    _LONG[_number] = _known_name

cdef uint64_t _SVG = _code(b"svg")
cdef uint64_t _MATH = _code(b"math")
cdef uint64_t _M_MATH = _code(b"m:math")
cdef uint64_t _MML_MATH = _code(b"mml:math")
cdef uint64_t _SUP = _code(b"sup")
cdef uint64_t _SUB = _code(b"sub")
cdef uint64_t _IMG = _code(b"img")
cdef uint64_t _FORM = _code(b"form")
cdef uint64_t _SELECT = _code(b"select")
cdef uint64_t _OPTION = _code(b"option")
cdef uint64_t _FRAMESET = _code(b"frameset")
cdef uint64_t _SCRIPT = _code(b"script")
cdef uint64_t _STYLE = _code(b"style")
cdef uint64_t _TITLE = _code(b"title")
cdef uint64_t _META = _code(b"meta")
cdef uint64_t _LINK = _code(b"link")
cdef uint64_t _BASE = _code(b"base")
cdef uint64_t _NOSCRIPT = _code(b"noscript")
cdef uint64_t _HTML = _code(b"html")
cdef uint64_t _HEAD = _code(b"head")
cdef uint64_t _TEXTAREA = _code(b"textarea")
cdef uint64_t _A = _code(b"a")
cdef uint64_t _NOBR = _code(b"nobr")
cdef Name* _known
memset(_KNOWN, 0, sizeof(_KNOWN))
for _known_name in {*_SPECIAL_NAMES, *_FORMATTING_NAMES, *_UNWRAPPED_NAMES, b"svg", b"math"}:
    _known = _find(_KNOWN, _code(_known_name))
    assert _known != NULL and not _known.code, _known_name
    _known.code = _code(_known_name)
    _known.is_special = _known_name in _SPECIAL_NAMES
    _known.is_void = _known_name in _VOID_NAMES
    _known.is_formatting = _known_name in _FORMATTING_NAMES
    _known.is_block = (
        _known.is_special and not _known.is_void or _known_name in _UNWRAPPED_NAMES or _known_name in (b"col", b"hr")
    )
