# SPDX-License-Identifier: Apache-2.0
"""What a rank's worker and the scheduler have, without an engine around them."""
import hashlib
from types import SimpleNamespace

import torch
from vllm.v1.kv_offload.base import GPULoadStoreSpec, ReqContext, make_offload_key

from kvtier import Codec, GroupKind, Session, Status
from kvtier.vllm.engine import Engine, GroupFacts
from kvtier.vllm.manager import KvtierManager
from kvtier.vllm.options import Options
from kvtier.vllm.transfer import KeysSpec
from kvtier.vllm.worker import KvtierWorker, page_tensors
from kvtierd import eventually

PAGE_TOKENS, PAGE_BYTES, PAGES = 16, 4096, 8


def digest(number):
    return hashlib.sha256(b"%d" % number).digest()


class Side:
    """What one rank's worker has, for a model with a single group."""

    def __init__(self, daemon, per_chunk=1, n_ranks=1, pages=None, codec=Codec.NONE, **options):
        facts = GroupFacts(0, GroupKind.ATTENTION, PAGE_TOKENS, 0, "bfloat16", ("layer",), codec)
        self.engine = Engine(
            identity=dict(model="sides", engine="vllm"),
            engine_id=bytes(16),
            groups=(facts,),
            chunk_tokens=PAGE_TOKENS * per_chunk,
            tokens_per_hash=PAGE_TOKENS,
            blocks_per_chunk=per_chunk,
            rank=0,
            n_ranks=n_ranks,
            replicated=n_ranks > 1,
        )
        self.options = Options(socket=daemon.socket, **options)
        numbers = torch.arange(PAGES * PAGE_BYTES).to(torch.int8)
        self.pages = numbers.reshape(PAGES, PAGE_BYTES) if pages is None else pages
        self.caches = SimpleNamespace(
            tensors=[SimpleNamespace(tensor=self.pages)],
            group_data_refs=[[SimpleNamespace(tensor_idx=0, page_size_bytes=PAGE_BYTES)]],
        )
        self.session = self.attach(self.engine.layout(page_tensors(self.engine, self.caches)))
        self.scheduler = self.attach(self.engine.layout())

    def attach(self, layout):
        session = Session(
            layout,
            socket=self.options.socket,
            engine_id=self.engine.engine_id,
            partial_layout=True,
            rank=0,
            n_ranks=self.engine.n_ranks,
        )
        assert session.wait_attached(20).name == "OK"
        return session

    def worker(self):
        return KvtierWorker(self.session, self.engine, self.options, self.caches)

    def manager(self):
        return KvtierManager(self.scheduler, self.engine, self.options)

    def chain(self, n):
        """(spec of n chunks to be stored, their digests)."""
        digests = [digest(i) for i in range(n + 1)]
        spec = KeysSpec(
            digests=b"".join(digests[1:]),
            groups=[0] * n,
            parents=bytes(32) + b"".join(digests[1:n]),
            ends=[(i + 1) * self.engine.chunk_tokens for i in range(n)],
        )
        return spec, digests[1:]

    def close(self):
        self.scheduler.close()
        self.session.close()


def blocks(numbers, first=0):
    return GPULoadStoreSpec(numbers, group_sizes=[len(numbers)], block_indices=[first])


def store(one, n):
    """The first chunks of the text, page by page from the first on."""
    worker = one.worker()
    worker.submit_store(1, blocks(list(range(n))), one.chain(n)[0])
    worker.wait({1})


class Prompt:
    """A request of n chunks, of which a worker has stored some, and vLLM's search for it."""

    def __init__(self, one, n=4, n_stored=None, **how):
        self.digests = one.chain(n)[1]
        store(one, n if n_stored is None else n_stored)
        self.one, self.n, self.manager = one, n, one.manager()
        self.ask("one", **how)

    def ask(self, name, params=None, skip=False):
        """Anew, as another request of the same text."""
        self.name, self.context = name, ReqContext(name, kv_transfer_params=params)
        self.keys = [make_offload_key(digest, 0) for digest in self.digests]
        for i, key in enumerate(self.keys):
            self.context.set_offload_key_position(key, (i + 1) * PAGE_TOKENS)
        self.request = SimpleNamespace(
            request_id=name,
            num_computed_tokens=0,
            num_tokens=self.n * PAGE_TOKENS,
            block_hashes=self.digests,
            skip_reading_prefix_cache=skip,
        )
        self.manager.on_new_request(self.context)
        self.manager.watch(self.request)

    def search(self, first):
        tokens = self.manager.leading(self.context, 0, first, self.n - first) * PAGE_TOKENS
        return tokens, bool(tokens)

    def match(self, local=0):
        """What vLLM is told now."""
        tokens = local * PAGE_TOKENS
        return self.manager.match(self.request, tokens, lambda: self.search(local))

    def found(self, local=0):
        """Once there is an answer, in chunks, beyond as many local ones."""

        def answered():
            answers.append(self.match(local)[0])
            return answers[-1] is not None

        answers = []
        eventually(answered)
        return answers[-1] // PAGE_TOKENS

    def finish(self):
        self.manager.on_request_finished(self.context)

    def leases(self):
        """Whether the daemon would drop what is stored: not what is leased."""
        self.manager.on_schedule_end(None)
        [status] = self.one.session.reclaim(self.digests[-1], prefix=True)
        return status is not Status.OK
