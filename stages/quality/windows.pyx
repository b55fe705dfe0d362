# cython: language_level=3, boundscheck=False, wraparound=False
"""Repeated n-grams of a text's words: each n-gram is looked up by a hash, and what has the same hash is compared.

The hash of a word is a polynomial over its characters modulo the prime 2^61 - 1, at a base drawn at random once for
each process. The hash of an n-gram comes from those of its words, either word by word ("worded": its words are equal)
or as if they were one word ("spelled": its characters are equal). Nobody can write a page whose n-grams collide (Carter
and Wegman 1979: two of them do by chance in less than one of 10^10 cases), and equal hashes are confirmed on the
characters, so no result depends on the base."""

import os

from cpython cimport array
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND, PyUnicode_READ
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

cdef extern from *:
    """
    #define SLUICE_PRIME ((1ULL << 61) - 1)
    static inline uint64_t sluice_times_plus(uint64_t a, uint64_t b, uint64_t c) {
        unsigned __int128 value = (unsigned __int128)a * b + c;
        uint64_t sum = (uint64_t)(value & SLUICE_PRIME) + (uint64_t)(value >> 61);
        return sum >= SLUICE_PRIME ? sum - SLUICE_PRIME : sum;
    }
    """
    uint64_t _times_plus "sluice_times_plus"(uint64_t, uint64_t, uint64_t) noexcept nogil
    uint64_t _PRIME "SLUICE_PRIME"

cdef array.array _INTS = array.array("i")
cdef uint64_t _ODD = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads hashes over the slots (Knuth, TAOCP 3, 6.4)
cdef uint64_t _BASE = int.from_bytes(os.urandom(7), "little") + (1 << 32)
cdef uint64_t _WORD_BASE = int.from_bytes(os.urandom(7), "little") + (1 << 32)


cdef class Windows:
    cdef str _text
    cdef int _kind
    cdef const char* _data
    cdef Py_ssize_t _num, _num_slots
    cdef int _shift, _n_worded, _n_spelled
    cdef void* _memory
    cdef uint64_t* _hashes
    cdef uint64_t* _powers
    cdef uint64_t* _worded
    cdef uint64_t* _spelled
    cdef Py_ssize_t* _starts
    cdef uint32_t* _slots
    cdef uint32_t* _counts
    cdef uint64_t _base, _word_base

    def __cinit__(self, str solid not None, const int32_t[::1] lengths not None, base=None):
        cdef Py_ssize_t place, total = 0
        self._num = lengths.shape[0]
        for place in range(self._num):
            if lengths[place] < 0:
                raise ValueError(f"word {place} has {lengths[place]} characters")
            total += lengths[place]
        if total != len(solid):
            raise ValueError(f"the words have {total} characters, the text {len(solid)}: expected as many")
        if self._num >= 1 << 31:
            raise ValueError(f"{self._num} words: expected fewer than 2^31")
        self._base, self._word_base = (_BASE, _WORD_BASE) if base is None else (base % _PRIME, base % _PRIME)
        self._text = solid
        self._kind = PyUnicode_KIND(solid)
        self._data = <const char*> PyUnicode_DATA(solid)
        self._shift = 61
        self._num_slots = 8
        while self._num_slots < 2 * self._num:
            self._shift -= 1
            self._num_slots *= 2
        self._allocate()
        self._hash_words(lengths)
        self._n_worded = self._n_spelled = 0

    def __dealloc__(self):
        PyMem_Free(self._memory)

    cdef int _allocate(self) except -1:
        cdef Py_ssize_t num = self._num + 1
        self._memory = PyMem_Malloc(num * (4 * sizeof(uint64_t) + sizeof(Py_ssize_t) + sizeof(uint32_t))
                                    + self._num_slots * sizeof(uint32_t))
        if self._memory == NULL:
            raise MemoryError
        self._hashes = <uint64_t*> self._memory
        self._powers = self._hashes + num
        self._worded = self._powers + num
        self._spelled = self._worded + num
        self._starts = <Py_ssize_t*> (self._spelled + num)
        self._slots = <uint32_t*> (self._starts + num)
        self._counts = self._slots + self._num_slots
        return 0

    cdef void _hash_words(self, const int32_t[::1] lengths) noexcept:
        cdef Py_ssize_t word, at = 0, end
        cdef Py_UCS4 code
        cdef uint64_t value, power
        for word in range(self._num):
            self._starts[word] = at
            end = at + lengths[word]
            value, power = 0, 1
            while at < end:
                code = PyUnicode_READ(self._kind, <void*> self._data, at)
                value = _times_plus(value, self._base, <uint64_t> code + 1)
                power = _times_plus(power, self._base, 0)
                at += 1
            self._hashes[word], self._powers[word] = value, power
        self._starts[self._num] = at

    def __len__(self):
        return self._num

    def num_chars(self, Py_ssize_t start, Py_ssize_t n):
        if start < 0 or n < 0 or start + n > self._num:
            raise IndexError(f"words {start} to {start + n} of {self._num}")
        return self._starts[start + n] - self._starts[start]

    def most_common(self, int n):
        cdef Py_ssize_t start, first, best = 0
        cdef uint32_t* slot
        if n < 1 or self._num < n:
            return None
        self._grow(self._worded, &self._n_worded, n, spelled=False)
        memset(self._slots, 0, self._num_slots * sizeof(uint32_t))
        self._counts[0] = 0
        for start in range(self._num - n + 1):
            slot = self._find(self._worded, start, n, spelled=False)
            if slot[0] == 0:
                slot[0] = <uint32_t> start + 1
                self._counts[start] = 0
            first = slot[0] - 1
            self._counts[first] += 1
            if (self._counts[first] > self._counts[best]
                    or (self._counts[first] == self._counts[best] and first < best)):
                best = first
        return best, self._counts[best]

    def counts(self, int n):
        cdef Py_ssize_t start, num = max(self._num - n + 1, 0) if n > 0 else 0
        cdef array.array found = array.clone(_INTS, num, False)
        cdef uint32_t* slot
        if num == 0:
            return found
        self._grow(self._worded, &self._n_worded, n, spelled=False)
        memset(self._slots, 0, self._num_slots * sizeof(uint32_t))
        # First where each n-gram was first seen, then how often that one came.
        for start in range(num):
            slot = self._find(self._worded, start, n, spelled=False)
            if slot[0] == 0:
                slot[0] = <uint32_t> start + 1
                self._counts[start] = 0
            found.data.as_ints[start] = <int32_t> (slot[0] - 1)
            self._counts[slot[0] - 1] += 1
        for start in range(num):
            found.data.as_ints[start] = <int32_t> self._counts[found.data.as_ints[start]]
        return found

    def sizes(self, int n):
        cdef Py_ssize_t start, num = max(self._num - n + 1, 0) if n > 0 else 0
        cdef array.array found = array.clone(_INTS, num, False)
        for start in range(num):
            found.data.as_ints[start] = <int32_t> (self._starts[start + n] - self._starts[start])
        return found

    def greedy_duplicate_chars(self, int n):
        cdef Py_ssize_t start = 0, chars = 0
        cdef uint32_t* slot
        if n < 1:
            return 0
        self._grow(self._spelled, &self._n_spelled, n, spelled=True)
        memset(self._slots, 0, self._num_slots * sizeof(uint32_t))
        while start <= self._num - n:
            slot = self._find(self._spelled, start, n, spelled=True)
            if slot[0] == 0:
                slot[0] = <uint32_t> start + 1
                start += 1
            else:
                chars += self._starts[start + n] - self._starts[start]
                start += n
        return chars

    cdef void _grow(self, uint64_t* hashes, int* grown, int n, bint spelled) noexcept:
        """Hashes of all n-grams from those of all (n - 1)-grams, in place."""
        # Spelled, a word moves what stands before it by as many powers of the base as it has characters.
        cdef Py_ssize_t start, last
        if n < grown[0] or grown[0] == 0:
            for start in range(self._num):
                hashes[start] = self._hashes[start]
            grown[0] = 1
        while grown[0] < n:
            for start in range(self._num - grown[0]):
                last = start + grown[0]
                hashes[start] = _times_plus(
                    hashes[start], self._powers[last] if spelled else self._word_base, self._hashes[last]
                )
            grown[0] += 1

    cdef uint32_t* _find(self, const uint64_t* hashes, Py_ssize_t start, int n, bint spelled) noexcept:
        """The slot of the n-gram at `start`: it holds 1 + the place where the n-gram was first put, or 0."""
        # The high bits of the product choose the slot. At most half of the slots are taken, so the probing ends.
        cdef Py_ssize_t slot = (hashes[start] * _ODD) >> self._shift
        cdef Py_ssize_t other
        while self._slots[slot]:
            other = self._slots[slot] - 1
            if hashes[other] == hashes[start] and self._are_equal(start, other, n, spelled):
                break
            slot = (slot + 1) & (self._num_slots - 1)
        return &self._slots[slot]

    cdef bint _are_equal(self, Py_ssize_t a, Py_ssize_t b, int n, bint spelled) noexcept:
        cdef Py_ssize_t chars = self._starts[a + n] - self._starts[a]
        cdef int k
        if not spelled:
            for k in range(1, n):  # "ab c" and "a bc" have the same characters, and words of other lengths
                if self._starts[a + k] - self._starts[a] != self._starts[b + k] - self._starts[b]:
                    return False
        return chars == self._starts[b + n] - self._starts[b] and memcmp(
            self._data + self._starts[a] * self._kind, self._data + self._starts[b] * self._kind, chars * self._kind
        ) == 0
