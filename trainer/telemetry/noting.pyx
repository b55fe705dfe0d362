# cython: language_level=3, boundscheck=False, wraparound=False
"""What every collective of a step passes on its way, compiled: noting in the ring that it begins and ends, and in the
clock how long this rank waited for it. `operations.py` says what is noted, and does whatever comes seldom."""

import sys
import time
import weakref

from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <frameobject.h>
    #include <pythread.h>
    /* `_OPERATION` of ring.py, on the little-endian processors that torch is built for. */
    typedef struct {
        uint64_t number;
        uint32_t site;
        int32_t peer;
        int64_t step;
        uint64_t group_number;
        int64_t size;
        double enter, exit;
        uint64_t unused;
    } sluice_operation;
    static inline PyObject* sluice_code(PyObject* frame) {
        return (PyObject*)PyFrame_GetCode((PyFrameObject*)frame);
    }
    static inline int sluice_instruction(PyObject* frame) {
        return PyFrame_GetLasti((PyFrameObject*)frame);
    }
    """
    ctypedef struct Entry "sluice_operation":
        uint64_t number
        uint32_t site
        int32_t peer
        int64_t step
        uint64_t group_number
        int64_t size
        double enter, exit
    unsigned long PyThread_get_thread_ident()
    object _code "sluice_code"(object frame)
    int _instruction "sluice_instruction"(object frame)

cdef object _now = time.perf_counter
cdef object _getframe = sys._getframe
cdef Py_ssize_t _MOST_ASKED = 4096  # operations of a step whose sites are remembered for the next one
cdef Py_ssize_t _MOST_PENDING = 4096  # asynchronous ones that nobody has waited for: forgotten beyond that


cdef class Entries:
    cdef unsigned char[::1] _map
    cdef Entry* _entries
    cdef uint64_t _capacity, _number

    def __init__(self, unsigned char[::1] map not None, Py_ssize_t at, uint64_t capacity):
        cdef Py_ssize_t room = map.shape[0] - at
        if capacity == 0 or at < 0 or at % 8 or room < 0 or capacity > room // sizeof(Entry):
            raise ValueError(f"{capacity} operations from byte {at} on do not fit into {map.shape[0]} bytes")
        self._map = map
        self._entries = <Entry*>&map[at]
        self._capacity, self._number = capacity, 0

    # Nothing of Python runs within these two: another thread comes before or after.

    cdef uint64_t note(
        self, uint32_t site, int64_t step, uint64_t group_number, int64_t size, int32_t peer, double enter
    ) noexcept:
        self._number += 1
        cdef Entry* entry = &self._entries[self._number % self._capacity]
        entry.number, entry.site, entry.peer, entry.step = self._number, site, peer, step
        entry.group_number, entry.size, entry.enter, entry.exit = group_number, size, enter, NAN
        return self._number

    cdef void note_end(self, uint64_t number, double exit) noexcept:
        cdef Entry* entry = &self._entries[number % self._capacity]
        if entry.number == number:  # not overwritten meanwhile
            entry.exit = exit

    def begin(self, uint32_t site, int64_t step, uint64_t group_number, int64_t size, int32_t peer=-1):
        return self.note(site, step, group_number, size, peer, _now())

    def end(self, uint64_t number):
        self.note_end(number, _now())


cdef class CountedGroup:
    cdef readonly object of
    cdef readonly uint64_t num_collectives

    def __init__(self, group):
        self.of = weakref.ref(group)


cdef class _Asked:
    cdef object name, group, phase, code
    cdef int instruction
    cdef uint32_t site


cdef class Noting:
    cdef Entries _entries
    cdef object _clock, _count, _site, _default, _begin_wait
    cdef unsigned long _thread
    cdef bint _on_gpu, _is_inside
    cdef public bint reduces
    cdef set _others_inside
    cdef dict _groups, _pending
    cdef list _asked
    cdef Py_ssize_t _num_asked
    cdef int64_t _step

    def __init__(self, Entries entries, clock, count, site, default, begin_wait):
        self._entries, self._clock = entries, clock
        self._count, self._site, self._default, self._begin_wait = count, site, default, begin_wait
        self._thread, self._on_gpu = PyThread_get_thread_ident(), clock.on_gpu
        self._is_inside = self.reduces = False
        self._others_inside = set()
        self._groups, self._pending, self._asked = {}, {}, []
        self._num_asked, self._step = 0, -1

    @property
    def step(self):
        return self._step

    @step.setter
    def step(self, int64_t step):
        self._step, self._num_asked = step, 0

    cpdef bint is_inside(self):
        cdef unsigned long thread = PyThread_get_thread_ident()
        return self._is_inside if thread == self._thread else thread in self._others_inside

    cpdef enter(self):
        cdef unsigned long thread = PyThread_get_thread_ident()
        if thread == self._thread:
            self._is_inside = True
        else:
            self._others_inside.add(thread)

    cpdef leave(self):
        cdef unsigned long thread = PyThread_get_thread_ident()
        if thread == self._thread:
            self._is_inside = False
        else:
            self._others_inside.discard(thread)

    def begin(self, str name, group, int64_t size, frame, peer=None, group_peer=None):
        if self._entries is None:
            return None
        known = self._known(group)
        cdef uint32_t site = self._place(name, known, frame)
        if peer is None and group_peer is None:
            known.num_collectives += 1
            return self._entries.begin(site, self._step, known.num_collectives, size)
        if peer is None:
            peer = known.global_ranks[group_peer]
        return self._entries.begin(site, self._step, known.next_message(name, peer), size, peer)

    def end(self, number):
        if number is not None:
            self._entries.end(number)

    def end_with(self, key, *numbers):
        if self._entries is not None:
            if len(self._pending) >= _MOST_PENDING:
                self._pending.clear()
            self._pending[key] = numbers

    def end_all_of(self, key):
        for number in self._pending.pop(key, ()):
            self._entries.end(number)

    cdef CountedGroup _known(self, group):
        if group is None:
            group = self._default()
        cdef CountedGroup known = self._groups.get(<size_t><void*>group)
        if known is None or known.of() is not group:
            known = self._groups[<size_t><void*>group] = self._count(group)
        return known

    cdef uint32_t _place(self, str name, CountedGroup known, frame) except? 0:
        """To find the trainer's line is dear where it lies far out, as behind fully_shard's hooks, and one step asks
        like the one before: the same at the same place in it is known."""
        cdef Py_ssize_t order = self._num_asked
        cdef _Asked asked
        self._num_asked += 1
        phase, code = self._clock.phase, _code(frame)
        cdef int instruction = _instruction(frame)
        if order < len(self._asked):
            asked = <_Asked>self._asked[order]
            if (
                asked.name is name and asked.group is known and asked.phase is phase and asked.code is code
                and asked.instruction == instruction
            ):
                return asked.site
        cdef uint32_t site = self._site(name, known, frame)
        if order < _MOST_ASKED:
            asked = _Asked()
            asked.name, asked.group, asked.phase, asked.code = name, known, phase, code
            asked.instruction, asked.site = instruction, site
            self._asked[order : order + 1] = [asked]
        return site

    cdef _add_wait(self, double began, double ended):
        if PyThread_get_thread_ident() == self._thread and not self.reduces:
            self._clock.add_wait(began, ended)


cdef class Collective:
    cdef Noting _noting
    cdef str _name
    cdef object _function, _input
    cdef Py_ssize_t _at_group, _at_input
    cdef object _tensor

    def __init__(self, Noting noting, str name, function, Py_ssize_t at_group, Py_ssize_t at_input, input, tensor):
        self._noting, self._name, self._function = noting, name, function
        self._at_group, self._at_input, self._input, self._tensor = at_group, at_input, input, tensor

    def ask(self, tuple args, dict kwargs):
        cdef Noting noting = self._noting
        cdef Entries entries = noting._entries
        cdef CountedGroup known
        cdef uint64_t number = 0, group_number = 0
        cdef int64_t size = -1
        cdef uint32_t site = 0
        cdef double began = 0, ended
        if noting.is_inside():
            return self._function(*args, **kwargs)
        if entries is not None:
            given = args[self._at_input] if self._at_input < len(args) else kwargs.get(self._input)
            if isinstance(given, self._tensor):
                size = given.nbytes
            known = noting._known(args[self._at_group] if self._at_group < len(args) else kwargs.get("group"))
            site = noting._place(self._name, known, _getframe(1))
            known.num_collectives += 1
            group_number = known.num_collectives
        waited = noting._begin_wait() if noting._on_gpu else None
        began = _now()
        if entries is not None:
            number = entries.note(site, noting._step, group_number, size, -1, began)
        noting.enter()
        try:
            result = self._function(*args, **kwargs)
        finally:
            noting.leave()
        ended = _now()
        if not noting._on_gpu:
            noting._add_wait(began, ended)
        elif waited is not None:
            noting._clock.end_wait(waited)
        if number:
            if result is None:
                entries.note_end(number, ended)
            else:  # a Work
                noting.end_with(<size_t><void*>result, number)
        return result


cdef class Wait:
    cdef Noting _noting
    cdef object _function

    def __init__(self, Noting noting, function):
        self._noting, self._function = noting, function

    def ask(self, work, tuple args, dict kwargs):
        cdef Noting noting = self._noting
        cdef double began, ended
        if noting.is_inside():
            return self._function(work, *args, **kwargs)
        waited = noting._begin_wait() if noting._on_gpu else None
        began = _now()
        result = self._function(work, *args, **kwargs)
        ended = _now()
        if not noting._on_gpu:
            noting._add_wait(began, ended)
        elif waited is not None:
            noting._clock.end_wait(waited)
        if noting._entries is not None:
            for number in noting._pending.pop(<size_t><void*>work, ()):
                noting._entries.note_end(number, ended)
        return result
