# SPDX-License-Identifier: Apache-2.0
"""second_process.py SOCKET: prints what an engine finds that is configured as the first one."""
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from conftest import EXTRA, config_of, create, transfer  # noqa: E402
from host_pools import content, indices_of, keys, mamba, mha  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName  # noqa: E402


def main(socket):
    pools = {PoolName.MAMBA: mamba(), PoolName.KV: mha()}
    config = config_of({**EXTRA, "kvtier_socket": socket, "kvtier_weights": "shared"})
    backend = create(pools[PoolName.KV], config, pools)
    chain = keys(4)
    wanted = [transfer(PoolName.MAMBA, chain[-1:], policy=PoolHitPolicy.TRAILING_PAGES)]
    restorable = backend.batch_exists_v2(chain, wanted).restorable_prefix_pages
    found = {}
    for name, pool in pools.items():
        indices = indices_of(pool, range(4))
        done = backend.batch_get_v2([transfer(name, chain, indices)])[name]
        pages = content(pool, indices)
        found[name.value] = [page.hex() for page, there in zip(pages, done) if there]
    layout_id = backend._store._session.info().layout_id.hex()
    backend.close()
    print(json.dumps(dict(keys=chain, layout_id=layout_id, restorable=restorable, found=found)))


main(*sys.argv[1:])
