# SPDX-License-Identifier: Apache-2.0
"""llama.cpp sequences whose state is saved straight into, and restored straight out of,
memory that kvtierd leases: the only copy is llama.cpp's own.

    store = StateStore.of(llm)                     # a llama_cpp.Llama
    n = store.resume(llm, tokens)                  # restored tokens, the others are decoded

or over the low-level bindings, from the thread that decodes:

    store = StateStore(model, context, params, "model.gguf")
    n = store.load(prompt)                         # restored tokens, 0 for a miss
    decode(prompt[n:-1])
    store.save(prompt[:-1])
    decode(prompt[-1:])                            # logits are not part of a state

For pure attention a stored state serves any prefix of its tokens, in steps of `chunk_tokens`.
States of models with a window or a recurrent part serve exactly their own tokens; `checkpoint`
stores just that part, for many prefixes of one sequence, and they are served with the attention
part of the longer state that is saved at its end.

llama.cpp has no checksum, takes foreign states, crops where it must not, and may stop half-way:
whatever is not exactly as expected after a restore leaves the sequence empty, and is a miss.
"""
from __future__ import annotations

import ctypes
import hashlib
from contextlib import ExitStack
from typing import Any, Callable, Iterable, Optional

try:
    from llama_cpp import llama_cpp as c
except ImportError as error:
    raise ImportError("kvtier.llama_cpp needs llama-cpp-python") from error

from .digest import Identity, Tokens, token_view
from .lease import Lease
from .llama_layout import (
    CHECKPOINT,
    COVER,
    SEQUENCE,
    FilePath,
    Memory,
    has_checkpoints,
    lora_identity,
    state_layout,
)
from .session import Session
from .status import STORED, Status

__all__ = ["Memory", "StateStore", "lora_identity", "state_layout"]

WHOLE = c.LLAMA_STATE_SEQ_FLAGS_NONE
PARTIAL = c.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
BYTES = ctypes.POINTER(ctypes.c_uint8)
LOAD_TRIES = 4  # what presence promised may be gone: then a shorter one, not for ever


class StateStore:
    """Saves and restores the sequences of one context.

    model, context: llama_model_p and llama_context_p; they must outlive the store. params: the
    llama_context_params that the context was made with, gguf: the file (of a split model any
    part), model_params: the llama_model_params, needed if kv_overrides were set. identity: what
    the sequences are beyond their tokens, unless a call says otherwise (`lora_identity`).
    chunk_tokens: steps of the prefixes that a state of pure attention serves, at most 1,900 of
    them. bit_exact: states of contexts with another n_ubatch, n_threads or processor are misses,
    so that a continued run equals the uninterrupted one to the bit. Further arguments are
    those of `Session`.

    ValueError: the context's states could not be told from others. The daemon's failures
    are no exceptions: `load` says 0, the others say a `Status`. One thread at a time, the one
    that decodes.
    """

    def __init__(
        self,
        model: Any,
        context: Any,
        params: Any,
        gguf: FilePath,
        *,
        model_params: Optional[Any] = None,
        identity: Identity = Identity(),
        chunk_tokens: int = 64,
        bit_exact: bool = False,
        program: str = "llama.cpp",
        **session: Any,
    ) -> None:
        layout = state_layout(
            model, context, params, gguf,
            model_params=model_params, chunk_tokens=chunk_tokens, bit_exact=bit_exact,
        )  # fmt: skip
        self.memory = Memory.of(model)
        self.has_checkpoints = has_checkpoints(model)
        self.identity = identity
        self.chunk_tokens = chunk_tokens
        self._context, self._cells = context, c.llama_get_memory(context)
        self._n_swa = int(c.llama_model_n_swa(model))
        self._n_seq = c.llama_n_seq_max(context)
        self._refused: set[bytes] = set()
        self.session = Session(layout, program=program, **session)

    @classmethod
    def of(cls, llm: Any, **arguments: Any) -> StateStore:
        """The store of a `llama_cpp.Llama`; arguments as for the class."""
        if llm.lora_path and "identity" not in arguments:
            lora = lora_identity([(llm.lora_path, llm.lora_scale)])
            arguments["identity"] = Identity(lora=lora)
        arguments.setdefault("model_params", llm.model_params)
        return cls(llm.model, llm.ctx, llm.context_params, llm.model_path, **arguments)

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> StateStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- restoring ----

    def load(self, tokens: Tokens, *, seq: int = 0, identity: Optional[Identity] = None) -> int:
        """Restores the longest stored prefix into a sequence; the number of its tokens.

        0: nothing is stored, or it could not be restored. What the sequence held is gone in any
        case. At least the last token remains to be decoded.
        """
        self._check_seq(seq)
        self._clear(seq)
        identity = identity or self.identity
        view = token_view(tokens)
        limit = len(view) - 1
        for _ in range(LOAD_TRIES):
            n, groups = self._find(view[: max(limit, 0)], identity)
            if not n or self._restore(view[:n], groups, seq, identity):
                return n
            limit = n - 1
        return 0

    def _find(self, view: memoryview, identity: Identity) -> tuple[int, tuple[int, ...]]:
        """The longest prefix that can be restored, and the groups that it takes."""
        if not len(view):
            return 0, ()
        whole = self.session.find(view, identity=identity, group=SEQUENCE)
        if self.has_checkpoints:
            covered = self._find_covered(view, whole, identity)
            if covered:
                return covered, (COVER, CHECKPOINT)
        return whole, (SEQUENCE,)

    def _find_covered(self, view: memoryview, above: int, identity: Identity) -> int:
        """The longest checkpoint behind `above` whose attention part is stored too; 0: none."""
        limit = len(view)
        while limit > above:
            n = self.session.find(view[:limit], identity=identity, group=CHECKPOINT)
            if n <= above:
                return 0
            if self.session.find(view[:n], identity=identity, group=COVER) == n:
                return n
            limit = n - 1
        return 0

    def _restore(
        self, view: memoryview, groups: Iterable[int], seq: int, identity: Identity
    ) -> bool:
        with ExitStack() as stack:
            leases = []
            for group in groups:
                status, lease = self.session.acquire(view, identity=identity, group=group)
                if lease is None:
                    return False
                leases.append(stack.enter_context(lease))
            if self._read_all(leases, len(view), seq):
                return True
        self._clear(seq)
        # A later save replaces it; else it would be refused for as long as it is stored.
        self._refused.update(self._name(view, group, identity) for group in groups)
        return False

    def _read_all(self, leases: list[Lease], n: int, seq: int) -> bool:
        """Whole state, then the partial one of a pair; True when exactly n tokens are held."""
        if not self._read(leases[0], seq, WHOLE) or self._held(seq) < n:
            return False
        paired = len(leases) > 1
        if paired and not self._read(leases[1], seq, PARTIAL):
            return False
        # Cropping is right where every position has cells of its own, and nowhere else.
        if paired or self.memory is Memory.ATTENTION:
            if not c.llama_memory_seq_rm(self._cells, seq, n, -1):
                return False
        return self._held(seq) == n and self._begins_right(n, seq)

    def _begins_right(self, n: int, seq: int) -> bool:
        """Whether the first position held is one that the next token can do with."""
        first = int(c.llama_memory_seq_pos_min(self._cells, seq))
        if self.memory is Memory.ATTENTION:
            return first == 0
        if self.memory is Memory.WINDOW:
            return 0 <= first <= max(0, n - self._n_swa)
        return first == n - 1  # the recurrent part is of one position

    def _read(self, lease: Lease, seq: int, flags: int) -> bool:
        nbytes, buffer = lease.nbytes, None
        if lease.contiguous:
            address = lease.address
        else:
            buffer, address = _buffer(nbytes)  # llama.cpp reads one run of memory only
            lease.read_into(buffer)
        source = ctypes.cast(address, BYTES)
        read = c.llama_state_seq_set_data_ext(self._context, source, nbytes, seq, flags)
        return bool(read == nbytes)

    # ---- saving ----

    def save(
        self, tokens: Tokens, *, seq: int = 0, identity: Optional[Identity] = None
    ) -> Status:
        """Stores the state of a sequence that holds exactly these tokens.

        OK, ALREADY_HAVE: it is stored. Anything else: not this time. ValueError: the sequence
        holds another number of tokens.
        """
        identity = identity or self.identity
        view = self._check_held(tokens, seq)
        if self.memory is Memory.ATTENTION:
            return self._store(view, SEQUENCE, seq, identity, croppable=True)
        if not self.has_checkpoints or not self._lacks_cover(view, identity):
            return self._store(view, SEQUENCE, seq, identity)
        status = self._store(view, COVER, seq, identity, croppable=True)
        if status in STORED:
            status = self._store(view, CHECKPOINT, seq, identity)
        return status

    def checkpoint(
        self, tokens: Tokens, *, seq: int = 0, identity: Optional[Identity] = None
    ) -> Status:
        """Stores just the window or the recurrent part of a sequence that holds these tokens.

        It is of use as soon as a longer state of the same sequence is saved, and saves the bytes
        of the attention part. UNSUPPORTED: pure attention, which needs none. ValueError: not a
        multiple of chunk_tokens, where alone the longer state can be cropped.
        """
        identity = identity or self.identity
        view = self._check_held(tokens, seq)
        if self.memory is Memory.ATTENTION:
            return Status.UNSUPPORTED
        if not self.has_checkpoints:
            return self._store(view, SEQUENCE, seq, identity)
        if len(view) % self.chunk_tokens:
            raise ValueError(
                f"a checkpoint is a multiple of {self.chunk_tokens} tokens, not {len(view)}"
            )
        return self._store(view, CHECKPOINT, seq, identity)

    def _lacks_cover(self, view: memoryview, identity: Identity) -> bool:
        """Whether the latest checkpoint before the end waits for an attention part."""
        if len(view) < 2:
            return False
        n = self.session.find(view[:-1], identity=identity, group=CHECKPOINT)
        return n > 0 and self.session.find(view[:n], identity=identity, group=COVER) < n

    def _store(
        self,
        view: memoryview,
        group: int,
        seq: int,
        identity: Identity,
        *,
        croppable: bool = False,
    ) -> Status:
        flags = PARTIAL if group == CHECKPOINT else WHOLE
        c.llama_synchronize(self._context)
        nbytes = int(c.llama_state_seq_get_size_ext(self._context, seq, flags))
        replace = bool(self._refused) and self._name(view, group, identity) in self._refused
        status, lease = self.session.reserve(
            view, nbytes, croppable=croppable, replace=replace, identity=identity, group=group
        )
        if lease is None:
            return status
        with lease:
            self._write(lease, seq, flags)
            status = lease.commit()
        if replace and status is Status.OK:
            self._refused.discard(self._name(view, group, identity))
        return status

    def _write(self, lease: Lease, seq: int, flags: int) -> None:
        nbytes, buffer = lease.nbytes, None
        if lease.contiguous:
            address = lease.address
        else:
            buffer, address = _buffer(nbytes)  # llama.cpp writes one run of memory only
        target = ctypes.cast(address, BYTES)
        written = c.llama_state_seq_get_data_ext(self._context, target, nbytes, seq, flags)
        if written != nbytes:
            raise RuntimeError(f"llama.cpp wrote {written} bytes of a state of {nbytes}")
        if buffer is not None:
            lease.write(buffer)

    # ---- both ----

    def prefill(
        self,
        tokens: Tokens,
        decode: Callable[[memoryview], object],
        *,
        checkpoints: Iterable[int] = (),
        seq: int = 0,
        identity: Optional[Identity] = None,
    ) -> int:
        """Restores what is stored of a prompt, decodes the rest, stores what is new.

        decode: decodes tokens (int32) behind those that the sequence holds. checkpoints:
        lengths at which to store one. Returns the number of restored tokens; the logits are
        those of the last one.
        """
        view = token_view(tokens)
        end = len(view) - 1
        restored = at = self.load(view, seq=seq, identity=identity)
        for n in sorted({n for n in checkpoints if restored < n < end}):
            decode(view[at:n])
            self.checkpoint(view[:n], seq=seq, identity=identity)
            at = n
        if at < end:
            decode(view[at:end])
            self.save(view[:end], seq=seq, identity=identity)
        decode(view[end:])
        return restored

    def resume(self, llm: Any, tokens: Tokens, **arguments: Any) -> int:
        """`prefill` of the `llama_cpp.Llama` that the store is of, by its own `eval`.

        After it `generate(tokens)`, `create_completion(tokens)` and the like go on from there.
        """
        view = token_view(tokens)
        llm.reset()

        def decode(part: memoryview) -> None:
            # What was restored is told to the object by its own members, before its first eval.
            if not llm.n_tokens:
                n = self._held(0)
                llm.input_ids[:n] = view[:n]
                llm.n_tokens = n
            llm.eval(part.tolist())

        return self.prefill(view, decode, **arguments)

    def _held(self, seq: int) -> int:
        return int(c.llama_memory_seq_pos_max(self._cells, seq)) + 1

    def _clear(self, seq: int) -> None:
        c.llama_memory_seq_rm(self._cells, seq, -1, -1)

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self._n_seq:
            raise ValueError(f"sequence {seq} of {self._n_seq}")

    def _check_held(self, tokens: Tokens, seq: int) -> memoryview:
        self._check_seq(seq)
        view = token_view(tokens)
        if not len(view) or self._held(seq) != len(view):
            raise ValueError(f"sequence {seq} holds {self._held(seq)} tokens, not {len(view)}")
        if not self._begins_right(len(view), seq):
            raise ValueError(f"sequence {seq} has lost its beginning: it was shifted or cropped")
        return view

    @staticmethod
    def _name(view: memoryview, group: int, identity: Identity) -> bytes:
        return hashlib.sha256(repr((group, identity)).encode() + view.tobytes()).digest()


def _buffer(nbytes: int) -> tuple[bytearray, int]:
    """Memory of our own and its address, for a state that lies in several segments."""
    buffer = bytearray(nbytes)
    return buffer, ctypes.addressof(ctypes.c_char.from_buffer(buffer))
