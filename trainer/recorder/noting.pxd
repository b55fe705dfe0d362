cimport cython

cdef class Entries:
    cdef object _map, _numbers
    cdef Py_ssize_t _at, _capacity, _size
    cdef list _holds

    @cython.locals(place=Py_ssize_t)
    cpdef note(self, site, step, group_number, size, peer, double enter)
    @cython.locals(place=Py_ssize_t)
    cpdef note_end(self, Py_ssize_t number, double exit)


cdef class CountedGroup:
    cdef public object of
    cdef public long long num_collectives


cdef class Noting:
    cdef public Entries entries
    cdef public object clock, begin_wait
    cdef public long long step_now
    cdef public bint on_gpu, reduces
    cdef bint _is_inside
    cdef object _count, _site, _default
    cdef unsigned long _thread
    cdef set _others_inside
    cdef dict _groups, _pending
    cdef list _asked
    cdef Py_ssize_t _num_asked

    @cython.locals(thread=cython.ulong)
    cpdef bint is_inside(self)
    @cython.locals(thread=cython.ulong)
    cpdef enter(self)
    @cython.locals(thread=cython.ulong)
    cpdef leave(self)
    @cython.locals(known=CountedGroup)
    cpdef CountedGroup known(self, group)
    @cython.locals(order=Py_ssize_t, instruction=int, asked=tuple)
    cpdef place(self, str name, CountedGroup group, frame)
    cpdef add_wait(self, double began, double ended)


cdef class Collective:
    cdef Noting _noting
    cdef str _name, _input
    cdef object _function, _tensor
    cdef Py_ssize_t _at_group, _at_input

    @cython.locals(noting=Noting, entries=Entries, known=CountedGroup, began=double, ended=double)
    cpdef ask(self, tuple args, dict kwargs, frame)


cdef class Wait:
    cdef Noting _noting
    cdef object _function

    @cython.locals(noting=Noting, began=double, ended=double)
    cpdef ask(self, work, tuple args, dict kwargs)
