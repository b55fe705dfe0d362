# cython: language_level=3
"""spaCy's loop over the affixes of a substring, on answers that are remembered by the characters at its edges."""

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

import re
from itertools import pairwise

_SURROGATE = re.compile("[\ud800-\udfff]")

cdef enum:
    _UNSURE = -1
    _UNKNOWN = -2
    _ASCII = 128
    _WIDEST = 3
    _MAX_WINDOWS = 65536


cdef int _answer(dict known, ask, str window) except? _UNKNOWN:
    """What `ask` says of a window, asked once; hostile text has ever new ones, so the answers are dropped when there
    are many."""
    cdef PyObject* found = PyDict_GetItem(known, window)
    cdef int answer
    if found != NULL:
        return <object> found
    answer = ask(window)
    if len(known) >= _MAX_WINDOWS:
        known.clear()
    known[window] = answer
    return answer


cdef int _number(dict known, str token, ask) except -1:
    """What `ask` says of a token beside which no special case matters, asked once; it is one of a special case's, so
    there are not many."""
    if token not in known:
        known[token] = ask("", token)
    return known[token]


cdef int _length(search, str string) except -1:
    """Length of what a search finds; 0 where it finds nothing."""
    match = None if search is None else search(string)
    return 0 if match is None else match.end() - match.start()


cdef class AffixLoop:
    cdef dict _rules, _prefixes, _suffixes, _infixes
    cdef object _affixes, _prefix_search, _suffix_search, _infix_finditer, _token_match, _url_match
    cdef dict _by_first, _first_numbers, _last_numbers
    cdef str _url_needs
    cdef frozenset _lefts, _rights, _pairs, _alone, _opening_edges, _closing_edges
    cdef dict _openings, _closings
    cdef list _lengths
    cdef Py_ssize_t _max_chars
    cdef signed char _ascii_infixes[_ASCII]

    def __cinit__(
        self, tokenizer not None, affixes not None, dict rules not None, dict patterns not None,
        Py_ssize_t max_chars, str url_needs not None,
    ):
        cdef Py_ssize_t code
        self._affixes = affixes
        self._rules = rules
        self._alone = frozenset(found[0] for rule, found in patterns.items() if len(found) == 1 and found != rules[rule])
        self._by_first, self._first_numbers, self._last_numbers = {}, {}, {}
        for found in patterns.values():
            self._by_first.setdefault(found[0], []).append(found)
        self._pairs = frozenset(pair for found in patterns.values() for pair in pairwise(found))
        self._lengths = sorted({len(rule) for rule in patterns})
        self._openings = {rule: found[0] for rule, found in patterns.items()}
        self._closings = {rule: found[len(found) - 1] for rule, found in patterns.items()}
        self._opening_edges = frozenset(rule[:_WIDEST] for rule in patterns)
        self._closing_edges = frozenset(rule[-_WIDEST:] for rule in patterns)
        self._prefix_search, self._suffix_search = tokenizer.prefix_search, tokenizer.suffix_search
        self._infix_finditer = tokenizer.infix_finditer
        self._lefts = frozenset(left for left, _ in self._pairs)
        self._rights = frozenset(right for _, right in self._pairs)
        self._max_chars = max_chars
        self._token_match, self._url_match = tokenizer.token_match, tokenizer.url_match
        self._url_needs = url_needs
        self._prefixes, self._suffixes, self._infixes = {}, {}, {}
        for code in range(_ASCII):
            self._ascii_infixes[code] = _UNKNOWN

    @property
    def num_windows(self):
        return len(self._prefixes) + len(self._suffixes) + len(self._infixes)

    def learn(self, list substrings not None, add, first, last):
        cdef str substring
        cdef list tokens, asked = []
        cdef Py_ssize_t num
        for substring in substrings:
            tokens = self._tokens(substring)
            if tokens is None:
                asked.append(substring)
            else:
                num = len(tokens)
                add(substring, tokens, self._first(substring, tokens[0], first), self._last(substring, tokens[num - 1], last))
        return asked

    cdef list _tokens(self, str substring):
        """The tokens of a substring; None where it is not answered."""
        cdef list before = [], after = [], tokens
        cdef str string, rest
        cdef Py_ssize_t start = 0, end = len(substring), last_size = 0
        cdef int prefix, suffix
        if substring.isalpha() and substring not in self._rules:
            return [substring]
        if end > self._max_chars or " " in substring:
            return None
        if not substring.isascii() and _SURROGATE.search(substring):  # spaCy is given another character for it
            return None
        while end > start and end - start != last_size:
            string = substring[start:end]
            if self._token_match is not None and self._token_match(string):
                break
            if string in self._rules:
                break
            last_size = end - start
            prefix = self._prefix(string)
            if prefix == _UNSURE:
                prefix = _length(self._prefix_search, string)
            if prefix and end - start > prefix and substring[start + prefix : end] in self._rules:
                before.append(substring[start : start + prefix])
                start += prefix
                break
            suffix = 0
            if end - start > prefix:
                rest = substring[start + prefix : end] if prefix else string
                suffix = self._suffix(rest)
                if suffix == _UNSURE:
                    suffix = _length(self._suffix_search, rest)
            if suffix and end - start > suffix and substring[start : end - suffix] in self._rules:
                after.append(substring[end - suffix : end])
                end -= suffix
                break
            if prefix:
                before.append(substring[start : start + prefix])
                start += prefix
            # An overlap cannot be: the suffix was looked for behind the prefix.
            if suffix:
                after.append(substring[end - suffix : end])
                end -= suffix
        tokens = before
        if end > start:
            self._add_middle(tokens, substring[start:end] if end - start < len(substring) else substring)
        after.reverse()
        tokens += after
        return self._with_special_cases(tokens) if self._holds_pattern(tokens) else tokens

    cdef int _prefix(self, str string) except? _UNKNOWN:
        """By the first character, or two where one does not tell."""
        cdef int answer = _answer(self._prefixes, self._affixes.prefix, string[:1])
        if answer == _UNSURE:
            answer = _answer(self._prefixes, self._affixes.prefix, string[:2] if len(string) > 1 else string + "\n")
        return answer

    cdef int _suffix(self, str string) except? _UNKNOWN:
        """By the last character, or the last two or three where fewer do not tell."""
        cdef Py_ssize_t length = len(string), num = 1
        cdef int answer = _answer(self._suffixes, self._affixes.suffix, string[length - 1 :])
        while answer == _UNSURE and num < min(length, _WIDEST):
            num += 1
            answer = _answer(self._suffixes, self._affixes.suffix, string[length - num :])
        if answer == _UNSURE and num < _WIDEST:
            answer = _answer(self._suffixes, self._affixes.suffix, "\n" + string)
        return answer

    cdef int _infix(self, str string, Py_ssize_t place) except? _UNKNOWN:
        """By a character, or with its neighbours where it does not tell."""
        cdef Py_UCS4 char = string[place]
        cdef int answer = self._ascii_infixes[char] if char < _ASCII else _UNKNOWN
        cdef str before, after
        if answer == _UNKNOWN:
            answer = _answer(self._infixes, self._affixes.infix, chr(char))
            if char < _ASCII:
                self._ascii_infixes[char] = <signed char> answer
        if answer == _UNSURE:
            before = string[place - 1 : place] if place else "\n"
            after = string[place + 1 : place + 2] if place + 1 < len(string) else "\n"
            answer = _answer(self._infixes, self._affixes.infix, before + string[place : place + 1] + after)
        return answer

    cdef int _add_middle(self, list tokens, str string) except -1:
        """Adds what stands between the affixes."""
        cdef Py_ssize_t place, start = 0, num_before = len(tokens)
        cdef int infix
        cdef PyObject* rule = PyDict_GetItem(self._rules, string)
        if rule != NULL:
            tokens.extend(<object> rule)
            return 0
        if (self._token_match is not None and self._token_match(string)) or (
            self._url_match is not None and self._may_be_url(string) and self._url_match(string)
        ):
            tokens.append(string)
            return 0
        for place in range(len(string)):
            infix = self._infix(string, place)
            if infix == _UNSURE:
                del tokens[num_before:]
                return self._add_by_search(tokens, string)
            if infix and place:  # spaCy passes over an infix at the begin
                if place != start:
                    tokens.append(string[start:place])
                tokens.append(string[place : place + 1])
                start = place + 1
        if start < len(string):
            tokens.append(string[start:] if start else string)
        return 0

    cdef int _add_by_search(self, list tokens, str string) except -1:
        """The same by the infix expression itself."""
        cdef Py_ssize_t start = 0, infix_start, infix_end
        for match in self._infix_finditer(string) if self._infix_finditer is not None else ():
            infix_start, infix_end = match.span()
            if infix_start == 0:
                continue
            if infix_start != start:
                tokens.append(string[start:infix_start])
            if infix_start != infix_end:
                tokens.append(string[infix_start:infix_end])
            start = infix_end
        if start < len(string):
            tokens.append(string[start:])
        return 0

    cdef bint _may_be_url(self, str string) except -1:
        cdef Py_UCS4 needed
        for needed in self._url_needs:
            if needed not in string:
                return False
        return True

    cdef bint _holds_pattern(self, list tokens) except -1:
        """Whether spaCy's matcher may find a special case among the tokens."""
        cdef Py_ssize_t place
        for place in range(len(tokens)):
            if tokens[place] in self._alone:
                return True
            if place and tokens[place] in self._rights and tokens[place - 1] in self._lefts:
                if (tokens[place - 1], tokens[place]) in self._pairs:
                    return True
        return False

    cdef list _with_special_cases(self, list tokens):
        """The tokens after spaCy's matcher: of the special cases among them the longest count, and of equally long ones
        the first; one that is passed over still covers its tokens (`_filter_special_spans`)."""
        cdef Py_ssize_t start, end
        cdef list found = [], replaced = []
        cdef set covered = set()
        cdef dict chosen = {}
        for start in range(len(tokens)):
            for pattern in self._by_first.get(tokens[start], ()):
                if tokens[start : start + len(pattern)] == pattern:
                    found.append((-len(pattern), start))
        found.sort()
        for length, start in found:
            end = start - length
            if start not in covered and end - 1 not in covered:
                chosen[start] = end
            covered.update(range(start, end))
        start = 0
        while start < len(tokens):
            end = chosen.get(start, start + 1)
            # A special case with a space in it is found without one too, but is not meant.
            case = self._rules.get("".join(tokens[start:end])) if start in chosen else None
            replaced += tokens[start:end] if case is None else case
            start = end
        return replaced

    cdef int _first(self, str substring, str token, ask) except -1:
        """The number of what the substring begins with. Of a special case of up to three characters the whole is in
        `_opening_edges`, of a longer one its first three."""
        cdef Py_ssize_t num
        for num in range(1, min(len(substring), _WIDEST) + 1):
            if substring[:num] in self._opening_edges:
                for num in self._lengths:
                    if num <= len(substring) and self._openings.get(substring[:num], token) != token:
                        return ask(substring, token)
                break
        return _number(self._first_numbers, token, ask) if token in self._rights else 0

    cdef int _last(self, str substring, str token, ask) except -1:
        """The number of what the substring ends with."""
        cdef Py_ssize_t length = len(substring), num
        for num in range(1, min(length, _WIDEST) + 1):
            if substring[length - num :] in self._closing_edges:
                for num in self._lengths:
                    if num <= length and self._closings.get(substring[length - num :], token) != token:
                        return ask(substring, token)
                break
        return _number(self._last_numbers, token, ask) if token in self._lefts else 0
