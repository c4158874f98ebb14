# SPDX-License-Identifier: Apache-2.0
"""A cache as bytes, and back.

A chunk is the rows of its tokens of each paged tensor, tensor by tensor, with nothing
between them: the template says where each begins. A state is a header and each window and
state tensor: magic, length of the text, the text (JSON: tensors, flags), zeros up to a
multiple of 64 bytes. On the way back the text is compared with what the template expects,
and never made into anything: what a cache is made of comes from the model.
"""
from __future__ import annotations

import json
from typing import Any, Iterator, Sequence

import torch

from .layers import Kind
from .shape import Part, Template, Unusable, difference

MAGIC = b"kvtiertf"
ALIGNMENT = 64
TEXT_MAX = 1 << 22


def memory_of(buffer: torch.Tensor) -> Any:
    """Of bytes on the CPU, as what takes buffers wants it."""
    return buffer.numpy()


class Packing:
    def __init__(self, template: Template) -> None:
        self.template = template

    def state_bytes(self, boundary: int) -> int:
        return len(self._header(boundary)) + sum(part.nbytes for part in self._states(boundary))

    def pack_chunk(self, cache: Any, boundary: int, buffer: torch.Tensor) -> None:
        """The chunk that ends at a boundary; they count from 1."""
        for part, view in _views(buffer, 0, self.template.pages):
            view.copy_(self._rows(part, cache, boundary))

    def unpack_chunk(self, cache: Any, boundary: int, buffer: torch.Tensor) -> None:
        for part, view in _views(buffer, 0, self.template.pages):
            self._rows(part, cache, boundary).copy_(view)

    def pack_state(self, cache: Any, boundary: int, buffer: torch.Tensor) -> None:
        header = self._header(boundary)
        memory_of(buffer)[: len(header)] = bytearray(header)
        for part, view in _views(buffer, len(header), self._states(boundary)):
            view.copy_(part.get(cache))

    def unpack_state(self, cache: Any, boundary: int, buffer: torch.Tensor) -> None:
        header = self._header(boundary)
        _check_header(memory_of(buffer)[: len(header)].tobytes(), header)
        for part, view in _views(buffer, len(header), self._states(boundary)):
            part.get(cache).copy_(view)

    def _rows(self, part: Part, cache: Any, boundary: int) -> torch.Tensor:
        rows = self.template.chunk_tokens // part.rate
        return part.get(cache).narrow(part.axis, (boundary - 1) * rows, rows)

    def _states(self, boundary: int) -> list[Part]:
        tokens = boundary * self.template.chunk_tokens
        return self.template.at(tokens).select(Kind.WINDOW, Kind.STATE)

    def _header(self, boundary: int) -> bytes:
        tokens = boundary * self.template.chunk_tokens
        text = self.template.at(tokens).text(state=True).encode()
        header = MAGIC + len(text).to_bytes(8, "little") + text
        return header + bytes(-len(header) % ALIGNMENT)


def _views(
    buffer: torch.Tensor, position: int, parts: Sequence[Part]
) -> Iterator[tuple[Part, torch.Tensor]]:
    """Each part as it lies in the buffer; those that take no bytes are left out."""
    for part in parts:
        if part.nbytes:
            end = position + part.nbytes
            yield part, buffer[position:end].view(part.dtype).view(part.shape)
            position = end


def _check_header(found: bytes, expected: bytes) -> None:
    if found == expected:
        return
    length = int.from_bytes(found[8:16], "little")
    if found[:8] != MAGIC or length > min(len(found) - 16, TEXT_MAX):
        raise Unusable("the state has no header")
    try:
        text = json.loads(found[16 : 16 + length])
    except (ValueError, RecursionError):
        raise Unusable("the state's header cannot be read") from None
    wanted = json.loads(expected[16 : 16 + int.from_bytes(expected[8:16], "little")])
    raise Unusable("the state's " + (difference(text, wanted) or "header is padded otherwise"))
