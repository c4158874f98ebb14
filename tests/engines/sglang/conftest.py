# SPDX-License-Identifier: Apache-2.0
"""A daemon, SGLang's host pools, and backends that SGLang's own factory has made."""
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import no_gpu  # noqa: E402, F401  before sglang
from kvtierd import Daemon, eventually  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402

EXTRA = {
    "backend_name": "kvtier",
    "module_path": "kvtier.sglang",
    "class_name": "KvtierHiCache",
    "interface_v1": 1,
    "kvtier_connect_timeout": 20,  # of a busy machine
}


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="meson's build folder")


def config_of(extra=None, **changes):
    facts = dict(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="test/model",
        extra_config=extra,
    )
    return HiCacheStorageConfig(**{**facts, **changes})


def create(kv, config, side=None):
    """As HybridCacheController does it: the anchor, then all pools by name."""
    backend = StorageBackendFactory.create_backend("dynamic", config, kv)
    backend.register_mem_pool_host(kv)
    for name, pool in {PoolName.KV: kv, **(side or {})}.items():
        backend.register_mem_host_pool_v2(pool, name)
    backend.on_host_pools_registered()
    return backend


def transfer(name, keys, host_indices=None, policy=PoolHitPolicy.ALL_PAGES):
    return PoolTransfer(name, host_indices=host_indices, keys=keys, hit_policy=policy)


@pytest.fixture(scope="session")
def build(request):
    return Path(request.config.getoption("--build")).resolve()


@pytest.fixture(scope="session")
def shared_daemon(build, tmp_path_factory):
    with Daemon(build, tmp_path_factory.mktemp("kvtierd")) as daemon:
        yield daemon


@pytest.fixture
def daemon(build, tmp_path):
    """For a test of its own."""
    with Daemon(build, tmp_path) as daemon:
        yield daemon


@pytest.fixture
def open_backend(request):
    """Makes backends, which are closed at the end of the test. Each test has weights of its own
    name, so that it finds nothing that another has stored."""
    made = []

    def make(daemon, kv, side=None, options=None, **changes):
        options = {"kvtier_weights": request.node.name, **(options or {})}
        extra = {**EXTRA, "kvtier_socket": daemon.socket, **options}
        backend = create(kv, config_of(extra, **changes), side)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.close()


__all__ = ["eventually"]
