# cython: language_level=3
"""Text of UTF-8 that keeps its UTF-8.

resiliparse, fastText and pybind11 ask a str for its UTF-8, and CPython makes it then, character by character, and keeps
it with the str (`PyUnicode_AsUTF8AndSize`). That takes longer than decoding did, and the bytes that the text was made
of are the same ones: so they are copied to where CPython would keep them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

cdef extern from "Python.h":
    ctypedef struct PyCompactUnicodeObject:
        Py_ssize_t utf8_length
        char* utf8  # ends with a NUL; freed with the str by PyObject_Free
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyObject_Malloc(size_t size)
    object PyUnicode_DecodeUTF8(const char* octets, Py_ssize_t length, const char* errors)


def text_of_utf8(bytes octets not None):
    cdef Py_ssize_t length = PyBytes_GET_SIZE(octets)
    cdef str text = PyUnicode_DecodeUTF8(PyBytes_AS_STRING(octets), length, NULL)
    cdef PyCompactUnicodeObject* fields = <PyCompactUnicodeObject*> text
    cdef char* copy
    # ASCII is its own UTF-8, and a str of one character may be shared: all others are new here.
    if len(text) < 2 or PyUnicode_IS_COMPACT_ASCII(text) or fields.utf8 != NULL:
        return text
    copy = <char*> PyObject_Malloc(length + 1)
    if copy != NULL:  # else CPython makes it when it is asked for
        memcpy(copy, PyBytes_AS_STRING(octets), length + 1)
        fields.utf8_length = length
        fields.utf8 = copy
    return text
