# SPDX-License-Identifier: Apache-2.0
"""What the user may set in the extra configuration of an engine that has one."""
from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional, Self

from .layout import Codec

PREFIX = "kvtier_"
SECONDS_MAX = 1e9
SECONDS = ("connect_timeout", "load_timeout", "store_timeout", "peer_timeout")
TEXTS = ("socket", "weights", "peer", "address")
NUMBERS = ("gpu_staging_mib", "gpu_blocks")
CODECS = {"none": Codec.NONE, "fp8-tile128": Codec.FP8_TILE128, "mxfp8": Codec.MXFP8}


@dataclass(frozen=True)
class EngineOptions:
    """Each is given as `kvtier_NAME`; what has no such prefix is the engine's own."""

    #: Of the daemon; None: $KVTIER_SOCKET, or kvtier's default.
    socket: Optional[str] = None
    #: Seconds that the start of an engine process waits for the daemon. Without one it goes on.
    connect_timeout: float = 2.0
    #: Seconds after which a load that has not come is a miss.
    load_timeout: float = 10.0
    #: Seconds after which a store is given up.
    store_timeout: float = 10.0
    #: Part of the layout id: a name for weights, or tenants, that nothing else tells apart.
    weights: str = ""

    @classmethod
    def of(cls, extra_config: Mapping[str, Any]) -> Self:
        """ValueError: an option that does not exist, or a value of another type."""
        known = {field.name for field in fields(cls)}
        given = {k[len(PREFIX) :]: v for k, v in extra_config.items() if k.startswith(PREFIX)}
        if unknown := sorted(set(given) - known):
            names = ", ".join(PREFIX + name for name in sorted(known))
            raise ValueError(f"kvtier: no option {PREFIX}{unknown[0]}; there are {names}")
        for name in given.keys() & set(SECONDS):
            given[name] = _seconds(name, given[name])
        for name in given.keys() & set(TEXTS):
            if not isinstance(given[name], str):
                raise ValueError(f"kvtier: {PREFIX}{name} is {given[name]!r}, not a string")
        for name in given.keys() & set(NUMBERS):
            given[name] = _number(name, given[name])
        if "codec" in given:
            given["codec"] = _codec(given["codec"])
        given.setdefault("socket", os.environ.get("KVTIER_SOCKET"))
        return cls(**given)


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # JSON as Python reads it has NaN and Infinity.
    if not is_number or not 0 < value <= SECONDS_MAX:
        raise ValueError(f"kvtier: {PREFIX}{name} is {value!r}, not a positive number of seconds")
    return float(value)


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"kvtier: {PREFIX}{name} is {value!r}, not a number")
    return value


def _codec(value: Any) -> Codec:
    if not isinstance(value, str) or value not in CODECS:
        raise ValueError(f"kvtier: {PREFIX}codec is {value!r}, not one of {sorted(CODECS)}")
    return CODECS[value]
