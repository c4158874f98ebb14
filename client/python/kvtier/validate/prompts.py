# SPDX-License-Identifier: Apache-2.0
"""Prompts that no cache has seen: random tokens, of a seed, a name, and how often a part of the run
was begun, since caches keep what was asked before it broke off."""
from __future__ import annotations

import random
from typing import Optional, Sequence

from .engine import Engine
from .failure import UsageError

#: Distinct tokens below which two prompts might begin alike.
VARIETY = 64
SAMPLE = """The quick brown fox jumps over the lazy dog while seven bright engines carry water,
paper, stone and music from one small harbour to another. Nobody asked why the letters arrived
late, yet every clerk wrote a number, a name and a colour beside them: forty-two green parcels,
nine silver keys, a thousand grains of wheat. def main(argv): return sum(x * y for x, y in argv)
In winter, old machines sing; during summer they rest under blue canvas, dreaming of iron roads,
green valleys, quiet libraries, sudden storms, cheap bread and expensive clocks. {"id": 17}"""


def token_pool(engine: Engine, given: Optional[tuple[int, int]]) -> Sequence[int]:
    """What prompts are made of. UsageError: nobody says which tokens there are."""
    if given:
        return range(given[0], given[1] + 1)
    pool = sorted(set(engine.tokenize(SAMPLE)))
    if len(pool) < VARIETY:
        raise UsageError(
            f"{engine.url}/tokenize tells of {len(pool)} tokens, {VARIETY} are needed: "
            "say --token-ids FIRST:LAST, a range of tokens that the model has"
        )
    return pool


class Prompts:
    def __init__(self, pool: Sequence[int], seed: str) -> None:
        self._pool, self._seed = pool, seed
        self.attempt = 1  #: at this part of the run

    def make(self, tokens: int, name: str) -> list[int]:
        """The same whenever it is asked for by the same name in the same attempt."""
        source = random.Random(f"{self._seed} {self.attempt} {name}")
        return source.choices(self._pool, k=tokens)

    def salt(self, name: str) -> str:
        """For who must find nothing of others."""
        return f"kvtier-validate {self._seed} {self.attempt} {name}"
