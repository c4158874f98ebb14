# SPDX-License-Identifier: Apache-2.0
"""What a model's cache consists of at a boundary.

`describe` reads it off a cache. A model's cache is described once, when it holds exactly one
chunk (`Template`); all that differs at another boundary are numbers of rows and of tokens, so
the template says what a cache of n tokens has to be. A cache that is to be stored is compared
with that, and so are stored bytes before they become one.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Iterator

import torch

from .layers import Kind, Role, full_name, new_cache, roles_of

CACHE = -1  #: in place of a layer's number: an attribute of the cache itself


class Unusable(Exception):
    """Stored bytes that are a miss, and why."""


@dataclass(frozen=True)
class Part:
    """One tensor. key: of the dict or list that `attribute` is, None when it is the tensor."""

    layer: int
    attribute: str
    key: Any
    kind: Kind
    axis: int
    rate: int  #: tokens a row along the axis
    limit: int  #: rows of a window at most
    dtype: torch.dtype
    shape: tuple[int, ...]
    alias: str = ""  #: the attribute that holds the very same tensor

    @property
    def nbytes(self) -> int:
        n = 0 if self.alias else self.dtype.itemsize
        for length in self.shape:
            n *= length
        return n

    def with_rows(self, rows: int) -> Part:
        shape = list(self.shape)
        shape[self.axis] = rows
        return replace(self, shape=tuple(shape))

    def at(self, tokens: int) -> Part:
        if self.kind is Kind.PAGED:
            return self.with_rows(tokens // self.rate)
        return self.with_rows(min(tokens, self.limit)) if self.kind is Kind.WINDOW else self

    def get(self, cache: Any) -> torch.Tensor:
        value: Any = getattr(_owner(cache, self.layer), self.attribute)
        tensor: torch.Tensor = value if self.key is None else value[self.key]
        return tensor

    def put(self, cache: Any, tensor: torch.Tensor) -> None:
        owner = _owner(cache, self.layer)
        if self.key is None:
            setattr(owner, self.attribute, tensor)
        else:
            getattr(owner, self.attribute)[self.key] = tensor

    def __str__(self) -> str:
        return _name(self) if self.key is None else f"{_name(self)}[{self.key!r}]"


@dataclass(frozen=True)
class Flag:
    """A number, bool, dtype or a dict of these; rate: of a count, else 0."""

    layer: int
    attribute: str
    value: Any
    rate: int = 0

    def at(self, tokens: int) -> Flag:
        if not self.rate:
            return self
        count = tokens // self.rate
        whole = dict.fromkeys(self.value, count) if isinstance(self.value, dict) else count
        return replace(self, value=whole)


@dataclass(frozen=True)
class Description:
    classes: tuple[str, ...]  #: the cache's, then each layer's
    parts: tuple[Part, ...]
    flags: tuple[Flag, ...]
    lengths: tuple[tuple[str, int], ...]  #: lists of the cache that parts lie in

    def select(self, *kinds: Kind) -> list[Part]:
        """Of these kinds, larger items first: then each part is aligned behind the others."""
        chosen = [part for part in self.parts if part.kind in kinds]
        return sorted(chosen, key=lambda part: -part.dtype.itemsize)

    def text(self, state: bool = False) -> str:
        """As JSON; `state`: only what goes along with a state."""
        parts = self.select(Kind.WINDOW, Kind.STATE) if state else self.parts
        return json.dumps(
            {
                "classes": self.classes,
                "parts": {str(p): [p.kind.value, str(p.dtype), p.shape, p.alias] for p in parts},
                "flags": {_name(f): _plain(f.value) for f in self.flags},
                "lengths": dict(self.lengths),
            },
            separators=(",", ":"),
        )


def _owner(cache: Any, layer: int) -> Any:
    return cache if layer == CACHE else cache.layers[layer]


def _name(item: Part | Flag) -> str:
    return item.attribute if item.layer == CACHE else f"layers[{item.layer}].{item.attribute}"


def _plain(value: Any) -> Any:
    """JSON would turn keys that are numbers into strings: a dict becomes a list of pairs."""
    if isinstance(value, dict):
        return [[key, _plain(item)] for key, item in value.items()]
    return str(value) if isinstance(value, torch.dtype) else value


def _owners(cache: Any) -> Iterator[tuple[int, Any]]:
    yield CACHE, cache
    yield from enumerate(cache.layers)


def _items(value: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """(key, tensor) of an attribute; what is None or an empty list holds nothing yet."""
    pairs: Any = [(None, value)]
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, tensor in pairs:
        if isinstance(tensor, torch.Tensor):
            yield key, tensor
        elif tensor is not None and tensor != []:
            raise TypeError(f"kvtier.transformers expects a tensor, not {type(tensor).__name__}")


def _alias(owner: Any, attribute: str, tensor: torch.Tensor) -> str:
    return "keys" if attribute == "values" and owner.keys is tensor else ""


def _parts(layer: int, owner: Any, attribute: str, role: Role) -> Iterator[Part]:
    rate = getattr(owner, role.rate) if role.rate else 1
    limit = owner.sliding_window - 1 if role.kind is Kind.WINDOW else 0
    for key, tensor in _items(getattr(owner, attribute)):
        yield Part(
            layer,
            attribute,
            key,
            role.kind,
            role.axis,
            rate,
            limit,
            tensor.dtype,
            tuple(tensor.shape),
            _alias(owner, attribute, tensor) if role.kind is Kind.WINDOW else "",
        )


def _flag(layer: int, owner: Any, attribute: str, role: Role) -> Flag:
    value = getattr(owner, attribute)
    rate = 0
    if role.kind is Kind.COUNT:
        rate = getattr(owner, role.rate) if role.rate else 1
    return Flag(layer, attribute, dict(value) if isinstance(value, dict) else value, rate)


def describe(cache: Any) -> Description:
    """TypeError: a class or an attribute that is not known."""
    classes: list[str] = []
    parts: list[Part] = []
    flags: list[Flag] = []
    lengths: list[tuple[str, int]] = []
    for layer, owner in _owners(cache):
        classes.append(full_name(type(owner)))
        roles = roles_of(owner)
        for attribute, role in roles.items():
            if role.kind is Kind.OWNED or not hasattr(owner, attribute):
                continue
            if role.kind in (Kind.FLAG, Kind.COUNT):
                flags.append(_flag(layer, owner, attribute, role))
                continue
            parts.extend(_parts(layer, owner, attribute, role))
            if isinstance(getattr(owner, attribute), list):
                lengths.append((attribute, len(getattr(owner, attribute))))
    return Description(tuple(classes), tuple(parts), tuple(flags), tuple(lengths))


def difference(found: Any, expected: Any, where: str = "") -> str | None:
    """Where two JSON values differ, in words; None: nowhere."""
    if isinstance(found, dict) and isinstance(expected, dict):
        if found.keys() != expected.keys():
            few = sorted(found.keys() ^ expected.keys())[:3]
            return f"{where}has more or fewer entries: {', '.join(few)}"
        pairs = [(f"{where}{key} ", found[key], expected[key]) for key in expected]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(f"{where}{i} ", *items) for i, items in enumerate(zip(found, expected))]
    elif type(found) is type(expected) and found == expected:
        return None
    else:
        return f"{where}is {found!r:.200} in place of {expected!r:.200}"
    return next((why for w, f, e in pairs if (why := difference(f, e, w))), None)


class Template:
    """What a model's caches look like at each boundary, learned from one of one chunk."""

    def __init__(self, cache: Any, config: Any, chunk_tokens: int) -> None:
        self._class, self._config = type(cache), config
        self._one = describe(cache)
        self._devices = {part: part.get(cache).device for part in self._one.parts}
        self.devices = set(self._devices.values())
        self.chunk_tokens = chunk_tokens
        for part in self._one.parts:
            if part.kind is Kind.PAGED and chunk_tokens % part.rate:
                raise ValueError(f"chunk_tokens is not a multiple of {part.rate}, as {part} needs")
        why = self.misfit(self._one, chunk_tokens)
        if why:
            raise ValueError(f"a cache of {chunk_tokens} tokens is not as its class says: {why}")
        #: one chunk of all that is paged, in the order of its bytes
        self.pages = self._one.select(Kind.PAGED)
        self.page_bytes = sum(part.nbytes for part in self.pages)
        #: whether a boundary needs more than chunks
        self.has_state = any(part.kind is not Kind.PAGED for part in self._one.parts)

    def at(self, tokens: int) -> Description:
        return replace(
            self._one,
            parts=tuple(part.at(tokens) for part in self._one.parts),
            flags=tuple(flag.at(tokens) for flag in self._one.flags),
        )

    def misfit(self, found: Description, tokens: int) -> str | None:
        """Why this is no cache of so many tokens; None: it is one."""
        return difference(json.loads(found.text()), json.loads(self.at(tokens).text()))

    def signature(self) -> str:
        """All that decides what a chunk's and a state's bytes are."""
        return self._one.text()

    def dtypes(self) -> list[str]:
        return sorted({str(part.dtype).removeprefix("torch.") for part in self._one.parts})

    def empty(self, tokens: int) -> Any:
        """A cache of so many tokens whose tensors have yet to be filled in.

        Unusable: this release of transformers makes another one than the model did.
        """
        cache = new_cache(self._class, self._config)
        while len(cache.layers) < len(self._one.classes) - 1:
            cache.layers.append(cache.layer_class_to_replicate())
        for (_, owner), name in zip(_owners(cache), self._one.classes, strict=True):
            if full_name(type(owner)) != name:
                raise Unusable(f"{full_name(type(owner))} in place of {name}")
        for attribute, length in self._one.lengths:
            setattr(cache, attribute, [[] for _ in range(length)])
        wanted = self.at(tokens)
        for flag in wanted.flags:
            value = dict(flag.value) if isinstance(flag.value, dict) else flag.value
            setattr(_owner(cache, flag.layer), flag.attribute, value)
        self._make_tensors(cache, wanted)
        return cache

    def _make_tensors(self, cache: Any, wanted: Description) -> None:
        for part, one in zip(wanted.parts, self._one.parts):
            device = self._devices[one]
            owner = _owner(cache, part.layer)
            tensor = torch.empty(part.shape, dtype=part.dtype, device=device)
            part.put(cache, getattr(owner, part.alias) if part.alias else tensor)
            if part.layer == CACHE:
                continue
            owner.device = device
            if part.attribute == "indexer_keys":
                owner.indexer_device = device
            if part.kind is Kind.WINDOW:
                owner._sliding_window_tensor = owner._sliding_window_tensor.to(device)
