"""A GGUF's metadata and tensor table without its vocabulary, which takes gguf's own reader seconds."""

from __future__ import annotations

import struct
from typing import Any

from gguf import GGUFReader, GGUFValueType

LONG = 1024
ARRAY, STRING = struct.Struct("<IQ"), struct.Struct("<Q")
"""Type and number of an array's entries; length of a string."""


class Header(GGUFReader):
    """gguf's reader, for which arrays of more than ``LONG`` strings or numbers are empty.

    A vocabulary is hundreds of thousands of entries, for each of which the reader
    makes several numpy arrays. Only little-endian files are read so; gguf writes no other here.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type == GGUFValueType.ARRAY:
            try:
                kind, count = ARRAY.unpack_from(self.data.data, orig_offs)
                if count > LONG:
                    end = self._end(orig_offs + ARRAY.size, GGUFValueType(kind), count)
                    return end - orig_offs, [], [], [GGUFValueType.ARRAY, GGUFValueType(kind)]
            except struct.error as error:
                raise ValueError(f"the file ends within its metadata: {error}") from None
        return super()._get_field_parts(orig_offs, raw_type)

    def _end(self, start: int, kind: GGUFValueType, count: int) -> int:
        """Where an array's entries end; raises ValueError for arrays of arrays."""
        if kind in self.gguf_scalar_to_np:
            return start + count * int(self.gguf_scalar_to_np[kind]().itemsize)
        if kind != GGUFValueType.STRING:
            raise ValueError(f"an array of {kind.name} can't be skipped")
        data, place = self.data.data, start
        for _ in range(count):
            place += STRING.size + STRING.unpack_from(data, place)[0]
        return place
