# SPDX-License-Identifier: Apache-2.0
"""Page maps over memory of NVIDIA GPUs.

    with Session(layout) as session, Cuda(session):
        pages = PageMap(session, [PageGroup.of(tensors)])           # torch tensors on a GPU
        written = torch.cuda.current_stream().record_event()
        call = session.store_pages(pages, objects, after=written)   # waits for it on the GPU

Tensors are torch's, or whatever has `__cuda_array_interface__`. The daemon's memory is
registered with the driver in the background; copies are right before that, but slower.
What is copied how is measured once on each GPU. Neither torch nor a GPU is needed to import
this; `Cuda` raises where there is no GPU.
"""
from __future__ import annotations

import enum
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

from ._cuda import ffi
from ._native import ffi as native_ffi
from .session import Session
from .status import Status, checked

PACKAGED = Path(__file__).parent / "libkvtier-cuda.so"
INSTALLED = "libkvtier-cuda.so.0"
MEASURES_MAX = 64
POLL_S = 0.01


class CudaError(RuntimeError):
    """This session cannot use a GPU here; `status` and the text say why."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(f"{status.name}: {why or status.text}")
        self.status = status


class Strategy(enum.IntEnum):
    """How bytes go between pages and the daemon's memory."""

    PLAIN = 0  #: one copy of the driver's for each run of neighbours
    BATCH = 1  #: the driver's batched copies
    KERNEL = 2  #: a kernel that reads or writes the daemon's memory itself
    STAGED = 3  #: a kernel to or from a staging buffer on the GPU, and one copy


class Direction(enum.IntEnum):
    STORE = 0  #: from the GPU
    LOAD = 1


@dataclass(frozen=True)
class Counts:
    nbytes: int
    runs: int  #: copies of the driver's, or runs that a kernel was given
    jobs: int  #: objects of which any byte went this way


@dataclass(frozen=True)
class CudaInfo:
    driver_version: int  #: 13000 for CUDA 13.0
    n_devices: int
    mapped_bytes: int  #: of the daemon's memory
    registered_bytes: int  #: of these, so far
    refused_bytes: int  #: of these, which the driver would not register
    failed_jobs: int
    is_lost: bool  #: a GPU's context is lost
    has_batch: bool
    has_kernels: bool
    moved: dict[tuple[Direction, Strategy], Counts]
    unregistered_bytes_moved: int  #: of all bytes, those through the driver's own buffers
    last_error: str  #: of the driver, or ""


@dataclass(frozen=True)
class Measure:
    """Of one GPU and pages that lie in runs of `run_bytes`."""

    run_bytes: int
    bytes_per_second: dict[tuple[Direction, Strategy], float]  #: 0: not measured, not possible
    chosen: dict[Direction, Strategy]


class Cuda:
    """The GPUs of a session, from now until `close` or the session's end.

    devices: ordinals, the first next to most of the traffic; those of page maps are added as
    they come. strategies: of these the fastest is taken; none: of all. blocks: of a kernel,
    512 threads each. staging_bytes: on each GPU. piece_bytes: registered at a time. driver:
    path of libcuda.so.1. measure=False: choose by page size alone. 0 stands for the default.

    CudaError: there is no GPU, driver or libkvtier-cuda, or the session has GPUs already.
    """

    def __init__(
        self,
        session: Session,
        *,
        devices: Sequence[int] = (),
        strategies: Sequence[Strategy] = (),
        blocks: int = 0,
        staging_bytes: int = 0,
        piece_bytes: int = 0,
        driver: Optional[str] = None,
        measure: bool = True,
    ) -> None:
        lib = _library()
        keep = [ffi.new("uint32_t[]", list(devices)), ffi.new("char[]", (driver or "").encode())]
        options = ffi.new("struct kvt_cuda_options *")
        options.size = ffi.sizeof("struct kvt_cuda_options")
        options.devices, options.n_devices = keep[0] if devices else ffi.NULL, len(devices)
        options.driver = keep[1] if driver else ffi.NULL
        options.flags = 0 if measure else lib.KVT_CUDA_NO_MEASURE
        options.strategies = sum(1 << strategy for strategy in set(strategies))
        options.blocks = blocks
        options.staging_bytes, options.piece_bytes = staging_bytes, piece_bytes
        why = ffi.new("char[512]")
        status = Status(lib.kvt_cuda_register(_handle(session), options, why, len(why)))
        if status not in (Status.OK, Status.FORKED, Status.NO_MEMORY):
            raise CudaError(status, _text(why))
        checked(status, "Cuda")
        self._of: Optional[Session] = session
        session._has_gpus = True

    def close(self) -> None:
        """Calls in flight end; those on GPU memory that come later fail. `Session.close` does
        the same."""
        session = self._of
        if session is None:
            return
        with session._gpu_lock:
            session, self._of = self._of, None
            if session is not None and session._session is not None:
                session._has_gpus = False
                _library().kvt_cuda_unregister(_handle(session))

    def __enter__(self) -> Cuda:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _looked_at(self) -> Iterator[Any]:
        """The session, whose GPUs stay meanwhile."""
        session = self._of
        if session is not None:
            with session._gpu_lock:
                if self._of is not None:
                    yield _handle(session)
                    return
        raise ValueError("the session's GPUs were given up")

    def info(self) -> CudaInfo:
        c = ffi.new("struct kvt_cuda_info *")
        c.size = ffi.sizeof("struct kvt_cuda_info")
        with self._looked_at() as session:
            status = _library().kvt_cuda_info(session, c)
        checked(status, "info")
        return CudaInfo(
            driver_version=c.driver_version,
            n_devices=c.n_devices,
            mapped_bytes=c.mapped_bytes,
            registered_bytes=c.registered_bytes,
            refused_bytes=c.refused_bytes,
            failed_jobs=c.failed_jobs,
            is_lost=bool(c.is_lost),
            has_batch=bool(c.has_batch),
            has_kernels=bool(c.has_kernels),
            moved={
                key: Counts(counts.bytes, counts.runs, counts.jobs)
                for key in _KEYS
                for counts in (c.moved[key[0]][key[1]],)
            },
            unregistered_bytes_moved=c.unregistered_bytes_moved,
            last_error=_text(c.last_error),
        )

    def measured(self, device: int) -> list[Measure]:
        """The table by which a GPU chooses, ascending; empty for one that is not in use."""
        c = ffi.new("struct kvt_cuda_measure[]", MEASURES_MAX)
        n = ffi.new("size_t *")
        with self._looked_at() as session:
            status = _library().kvt_cuda_measured(session, device, c, MEASURES_MAX, n)
        checked(status, "measured")
        return [
            Measure(
                row.run_bytes,
                {key: row.bytes_per_second[key[0]][key[1]] for key in _KEYS},
                {direction: Strategy(row.chosen[direction]) for direction in Direction},
            )
            for row in c[0 : min(n[0], MEASURES_MAX)]
        ]

    def wait_registered(self, timeout: float = 60.0) -> bool:
        """Until all of the daemon's memory that is mapped now is registered, or refused."""
        end = time.monotonic() + timeout
        while (info := self.info()).registered_bytes + info.refused_bytes < info.mapped_bytes:
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_S)
        return True


_KEYS = [(direction, strategy) for direction in Direction for strategy in Strategy]


@cache
def _library() -> Any:
    try:
        return ffi.dlopen(str(PACKAGED) if PACKAGED.exists() else INSTALLED)
    except OSError as why:
        raise CudaError(Status.UNSUPPORTED, f"libkvtier-cuda: {why}") from None


def _handle(session: Session) -> Any:
    address = int(native_ffi.cast("uintptr_t", session._handle()))
    return ffi.cast("struct kvt_session *", address)


def _text(c: Any) -> str:
    text: bytes = ffi.string(c)
    return text.decode(errors="replace")
