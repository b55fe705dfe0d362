"""Thrift's compact protocol, as far as Parquet's page headers and footers need it.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md"""

from __future__ import annotations

from typing import Final

_MAX_NESTING: Final = 16
_MAX_STRUCTS: Final = 1_000_000
"""In lists that are kept: an empty struct takes one byte there and 64 in memory."""

Fields = dict[int, "int | Fields | list[Fields]"]


class ThriftError(ValueError):
    """The bytes are not what they should be in this protocol."""


class CompactReader:
    """Numbers and structs are read, all else is passed over; with `keeps_lists`, lists of structs are read
    too.

    IndexError where what is read goes on behind the data; ThriftError where it nests too deep, or more than
    `most_bytes` have to be looked at one by one (texts are passed over at once)."""

    def __init__(self, data: bytes | memoryview, *, most_bytes: int, keeps_lists: bool = False) -> None:
        self._data = data
        self._most_bytes = most_bytes
        self._keeps_lists = keeps_lists
        self._num_read = self._num_structs = 0
        self.at = 0

    def struct(self, depth: int = 0) -> Fields:
        """The numbers and structs of a struct, by field number."""
        if depth > _MAX_NESTING:
            raise ThriftError("structs that nest too deep")
        fields: Fields = {}
        number = 0
        while kind := self._byte():
            delta, kind = kind >> 4, kind & 15
            number = number + delta if delta else self._zigzag()
            if kind == 5:
                fields[number] = _signed(self._zigzag())
            elif kind == 6:
                fields[number] = self._zigzag()
            elif kind == 9 and self._keeps_lists:
                fields[number] = self._list(depth)
            elif kind == 12:
                fields[number] = self.struct(depth + 1)
            else:
                self._skip(kind, depth, in_list=False)
        return fields

    def _list(self, depth: int) -> list[Fields]:
        """The structs of a list; nothing of one that holds anything else."""
        head = self._byte()
        number = self._varint() if head >> 4 == 15 else head >> 4
        if head & 15 != 12:
            self._skip_all((head & 15,), number, depth)
            return []
        self._num_structs += number
        if self._num_structs > _MAX_STRUCTS:
            raise ThriftError(f"more than {_MAX_STRUCTS} structs")
        return [self.struct(depth + 1) for _ in range(number)]

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        self._num_read += 1
        if self._num_read > self._most_bytes:
            raise ThriftError("too many fields")
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ThriftError("a number of more than ten bytes")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int, *, in_list: bool) -> None:
        if depth > _MAX_NESTING:
            raise ThriftError("structs that nest too deep")
        if kind in (1, 2) and not in_list:
            return  # of a field of its own, the type is the value
        if kind in (1, 2, 3):
            self._byte()
        elif kind in (4, 5, 6):
            self._varint()
        elif kind == 7:
            self.at += 8
        elif kind == 8:
            length = self._varint()
            self.at += length
        elif kind in (9, 10):
            head = self._byte()
            number = self._varint() if head >> 4 == 15 else head >> 4
            self._skip_all((head & 15,), number, depth)
        elif kind == 11:
            if number := self._varint():
                kinds = self._byte()
                self._skip_all((kinds >> 4, kinds & 15), number, depth)
        elif kind == 12:
            self.struct(depth + 1)
        else:
            raise ThriftError(f"a field of the unknown type {kind}")
        if self.at > len(self._data):
            raise IndexError

    def _skip_all(self, kinds: tuple[int, ...], number: int, depth: int) -> None:
        for _ in range(number):
            for kind in kinds:
                self._skip(kind, depth + 1, in_list=True)


def _signed(value: int) -> int:
    """`value` as Thrift's readers take it: the lowest 32 bits with their sign."""
    return (value + 2**31) % 2**32 - 2**31
