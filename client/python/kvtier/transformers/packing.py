# SPDX-License-Identifier: Apache-2.0
"""A cache as pages that the library copies, on the CPU or on a GPU.

A chunk is a page: the rows of its tokens of each paged tensor, tensor by tensor, with nothing
between them; the template says where each begins. A state is a page of its own: a header and
each window and state tensor. The header is magic, length of the text, the text (JSON: tensors,
flags), zeros up to a multiple of 64 bytes. On the way back the text is compared with what the
template expects, and never made into anything: what a cache is made of comes from the model.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Sequence

import torch

from ..pages import PageGroup
from .layers import Kind
from .shape import Part, Template, Unusable, difference

MAGIC = b"kvtiertf"
ALIGNMENT = 64
TEXT_MAX = 1 << 22


@dataclass
class CachePages:
    """One cache's pages, which lie on one device. Keeps what the page groups point to."""

    device: torch.device
    is_load: bool
    groups: list[PageGroup] = field(default_factory=list)
    expected: bytes = b""  #: the header
    header: torch.Tensor | None = None
    #: tensors of other devices, and what stands for each
    twins: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def near(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        options: dict[str, Any] = dict(device=self.device, memory_format=torch.contiguous_format)
        twin = torch.empty_like(tensor, **options) if self.is_load else tensor.to(**options)
        self.twins.append((tensor, twin))
        return twin

    def finish_load(self) -> None:
        """Once all pages have arrived. Unusable: the state is of another cache."""
        if self.header is not None:
            _check_header(self.header.cpu().numpy().tobytes(), self.expected)
        for tensor, twin in self.twins:
            tensor.copy_(twin)


class Packing:
    """pages, state: the numbers of these groups in the layout."""

    def __init__(self, template: Template, pages: int = 0, state: int = 1) -> None:
        self.template = template
        self._pages, self._state = pages, state

    def state_bytes(self, boundary: int) -> int:
        return len(self._header(boundary)) + sum(part.nbytes for part in self._states(boundary))

    def pages_of(
        self, cache: Any, boundary: int, device: torch.device, is_load: bool
    ) -> CachePages:
        """Of a cache up to a boundary, the chunks in slots 0 on and its state in slot 0.

        What a load does not find on `device` it copies there at the end, a save before.
        """
        pages = CachePages(device, is_load)
        paged = [part for part in self.template.pages if part.nbytes]
        if paged:
            tensors = [self._chunks(part, pages.near(part.get(cache)), boundary) for part in paged]
            axes = [part.axis % len(part.shape) for part in paged]
            pages.groups.append(PageGroup.of(tensors, group=self._pages, page_axis=axes))
        if self.template.has_state:
            pages.groups.append(self._state_page(pages, cache, boundary))
        return pages

    def _chunks(self, part: Part, tensor: torch.Tensor, boundary: int) -> torch.Tensor:
        """With an axis that counts chunks in front of that of the rows."""
        rows = self.template.chunk_tokens // part.rate
        whole = tensor.narrow(part.axis, 0, boundary * rows)
        return whole.unflatten(part.axis, (boundary, rows))

    def _state_page(self, pages: CachePages, cache: Any, boundary: int) -> PageGroup:
        pages.expected = self._header(boundary)
        header = torch.frombuffer(bytearray(pages.expected), dtype=torch.uint8)
        pages.header = torch.zeros_like(header) if pages.is_load else header
        pages.header = pages.header.to(pages.device)
        tensors = [pages.header]
        for part in self._states(boundary):
            if part.nbytes:
                tensor = pages.near(part.get(cache))
                # A window is the end of a longer tensor. Those that a load fills are whole.
                tensors.append(tensor if pages.is_load else tensor.contiguous())
        return PageGroup.of([tensor.unsqueeze(0) for tensor in tensors], group=self._state)

    def _states(self, boundary: int) -> Sequence[Part]:
        tokens = boundary * self.template.chunk_tokens
        return self.template.at(tokens).select(Kind.WINDOW, Kind.STATE)

    def _header(self, boundary: int) -> bytes:
        tokens = boundary * self.template.chunk_tokens
        text = self.template.at(tokens).text(state=True).encode()
        header = MAGIC + len(text).to_bytes(8, "little") + text
        return header + bytes(-len(header) % ALIGNMENT)


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
