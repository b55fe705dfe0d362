# cython: language_level=3, boundscheck=False, wraparound=False
"""What substrings between white space become when they are split into words, remembered as numbers."""

from cpython cimport array
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_READ_CHAR, Py_UNICODE_ISSPACE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

cdef enum:
    _ROW_BYTES = 250
    _TOKEN_BYTES = 5

cdef struct Row:
    int64_t stop_words
    int32_t start  # of its tokens in `_lengths` and `_kinds`
    int32_t num_tokens
    int32_t num_words
    int32_t word_chars
    int32_t num_alphabetic
    int32_t first
    int32_t last

cdef Py_ssize_t _INTS_A_ROW = sizeof(Row) // sizeof(int32_t)
cdef array.array _INTS = array.array("i")
cdef array.array _BYTES = array.array("B")


# What is counted of a character, as bits; the first two are the kinds of a token, in `spacy_tokens.py`.
cdef enum:
    _ENDS_SENTENCE = 1
    _IS_P = 2
    _IS_PUNCTUATION = 4
    _IS_LETTER = 8
    _UNKNOWN = 16
    _NUM_CODES = 0x3000  # whose bits are kept; others are worked out each time


cdef class Memo:
    cdef dict _numbers, _stop_bits
    cdef object _bits_of
    cdef uint8_t _bits[_NUM_CODES]
    cdef array.array _rows, _lengths, _kinds
    cdef readonly Py_ssize_t num_bytes

    def __cinit__(self, dict stop_bits not None, bits_of):
        self._stop_bits = stop_bits
        self._bits_of = bits_of
        memset(self._bits, _UNKNOWN, _NUM_CODES)
        self._numbers = {}
        self._rows = array.clone(_INTS, 0, False)
        self._lengths = array.clone(_INTS, 0, False)
        self._kinds = array.clone(_BYTES, 0, False)

    def add(self, str substring not None, tokens, int32_t first, int32_t last):
        cdef Row row
        cdef str token
        cdef int32_t length
        cdef uint8_t kind, every, some, bits
        cdef Py_UCS4 char
        row.start = <int32_t> len(self._lengths)
        row.num_tokens = row.num_words = row.word_chars = row.num_alphabetic = row.stop_words = 0
        row.first, row.last = first, last
        for token in tokens:
            length = <int32_t> len(token)
            every, some = _IS_P | _IS_PUNCTUATION, 0
            for char in token:
                bits = self._bits_of_char(char)
                every &= bits
                some |= bits
            kind = (every & _IS_P) | (some & _ENDS_SENTENCE if length == 1 else 0)
            array.extend_buffer(self._lengths, <char*> &length, 1)
            array.extend_buffer(self._kinds, <char*> &kind, 1)
            row.num_tokens += 1
            if not every & _IS_PUNCTUATION:
                row.num_words += 1
                row.word_chars += length
            row.num_alphabetic += some & _IS_LETTER != 0
            row.stop_words |= <int64_t> self._stop_bits.get(token, 0)
        self._numbers[substring] = len(self._rows) // _INTS_A_ROW
        array.extend_buffer(self._rows, <char*> &row, _INTS_A_ROW)
        self.num_bytes += _ROW_BYTES + len(substring) + _TOKEN_BYTES * row.num_tokens

    cdef uint8_t _bits_of_char(self, Py_UCS4 char) except? 255:
        if char >= _NUM_CODES:
            return self._bits_of(char)
        if self._bits[char] == _UNKNOWN:
            self._bits[char] = self._bits_of(char)
        return self._bits[char]

    def numbers(self, list substrings not None, learn):
        cdef array.array numbers = array.clone(_INTS, len(substrings), False)
        cdef dict unknown = {}
        cdef Py_ssize_t place
        for place in range(len(substrings)):
            numbers.data.as_ints[place] = self._number(substrings[place])
            if numbers.data.as_ints[place] < 0:
                unknown[substrings[place]] = None
        if unknown:
            learn(list(unknown))
            for place in range(len(substrings)):
                if numbers.data.as_ints[place] < 0:
                    numbers.data.as_ints[place] = self._number(substrings[place])
        return numbers

    cdef int32_t _number(self, str substring) except -2:
        cdef PyObject* found = PyDict_GetItem(self._numbers, substring)
        return -1 if found == NULL else <int32_t> <object> found

    cdef const Row* _row(self, int32_t number) except NULL:
        if not 0 <= number < len(self._rows) // _INTS_A_ROW:
            raise IndexError(f"row {number} of {len(self._rows) // _INTS_A_ROW}")
        return <const Row*> <void*> self._rows.data.as_ints + number

    def sums(self, array.array numbers not None):
        cdef Py_ssize_t tokens = 0, words = 0, chars = 0, alphabetic = 0, place
        cdef int64_t stop_words = 0
        cdef const Row* row
        for place in range(len(numbers)):
            row = self._row(numbers.data.as_ints[place])
            tokens += row.num_tokens
            words += row.num_words
            chars += row.word_chars
            alphabetic += row.num_alphabetic
            stop_words |= row.stop_words
        return tokens, words, chars, alphabetic, stop_words

    def touching(self, array.array numbers not None, const uint8_t[:, ::1] neighbours not None, Py_ssize_t last):
        cdef Py_ssize_t place
        cdef const Row* row
        cdef list found = []
        for place in range(len(numbers)):
            row = self._row(numbers.data.as_ints[place])
            if not (0 <= last < neighbours.shape[0] and 0 <= row.first < neighbours.shape[1]):
                raise IndexError(f"no neighbours of {last} and {row.first}")
            if neighbours[last, row.first]:
                found.append(place)
            last = row.last
        return found, last

    def lengths(self, array.array numbers not None):
        cdef array.array lengths = array.clone(_INTS, self.sums(numbers)[0], False)
        cdef Py_ssize_t place, end = 0
        cdef int32_t token
        cdef const Row* row
        for place in range(len(numbers)):
            row = self._row(numbers.data.as_ints[place])
            for token in range(row.start, row.start + row.num_tokens):
                lengths.data.as_ints[end] = self._lengths.data.as_ints[token]
                end += 1
        return lengths

    def kinds(self, int32_t number):
        cdef const Row* row = self._row(number)
        return self._kinds.data.as_uchars[row.start : row.start + row.num_tokens]


def longest(list substrings not None):
    cdef Py_ssize_t most = 0
    cdef str substring
    for substring in substrings:
        most = max(most, len(substring))
    return most


def join_touching(str text not None, list substrings not None, list touching not None):
    cdef Py_ssize_t place, start = 0, end = 0, begin = 0, first = 0
    cdef list joined = []
    cdef set wanted = set(touching)
    for place in range(len(substrings)):
        start = end
        while start < len(text) and Py_UNICODE_ISSPACE(PyUnicode_READ_CHAR(text, start)):
            start += 1
        if not (place and place in wanted and start == end + 1 and text[end] == " "):
            if place:
                joined.append(substrings[first] if first == place - 1 else text[begin:end])
            begin, first = start, place
        end = start + len(<str> substrings[place])
    if substrings:
        joined.append(substrings[first] if first == len(substrings) - 1 else text[begin:end])
    return joined
