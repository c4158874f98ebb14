# SPDX-License-Identifier: Apache-2.0
"""rank.py RANK STORE SOCKET PLACE...: one of two ranks of an engine, which backs up eight pages
and a state behind each PLACE of these, and prefetches what both ranks can restore."""
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import conftest  # noqa: E402, F401  before sglang
import torch  # noqa: E402
from controllers import Engine, ranks  # noqa: E402
from host_pools import content, fill, indices_of, wipe  # noqa: E402


def main(rank, store, socket, *places):
    with ranks(torch.distributed.FileStore(store, 2), int(rank), 2) as group:
        engine = Engine(socket, group, "two ranks", states=True)
        fill(engine.kv, int(rank))
        fill(engine.states, 10 + int(rank))
        stored = content(engine.kv, indices_of(engine.kv, range(2)))
        [state] = content(engine.states, torch.tensor([3]))
        for place in places:
            engine.back_up(8, state_at=int(place))
        torch.distributed.barrier()
        wipe(engine.kv)
        wipe(engine.states)
        found = engine.query(8, state_slot=9)
        completed, pools = engine.fetch(found, first_page=30)
        equal = content(engine.kv, indices_of(engine.kv, [30, 31])) == stored
        equal &= content(engine.states, torch.tensor([9])) == [state]
        torch.distributed.barrier()
        engine.close()
    answer = dict(
        restorable=found.pool_storage_result.restorable_prefix_pages,
        hit_tokens=found.storage_hit_count,
        completed=completed,
        states=pools["mamba"],
        equal=equal,
    )
    print(json.dumps(answer))


main(*sys.argv[1:])
