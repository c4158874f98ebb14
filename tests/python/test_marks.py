# SPDX-License-Identifier: Apache-2.0
"""Reclaim, pins, reproducible runs, and who wrote what, from Python."""
import time

import pytest

from conftest import eventually, layout
from kvtier import Session, Status, digest_chain


def put(session, tokens):
    """Stores a blob; returns the digest of its end."""
    assert session.put(tokens, b"x" * 5000) is Status.OK
    _, end = digest_chain(tokens, 16)
    return end


def test_a_lease_says_who_wrote_the_blob_and_when(session, fresh):
    tokens, before = fresh(20), time.time_ns()
    put(session, tokens)
    status, lease = session.acquire(tokens)
    assert status is Status.OK
    with lease:
        assert lease.writer_boot_id == session.info().boot_id
        assert before <= lease.stored_ns <= time.time_ns()


def test_reclaim_drops_a_blob_and_a_pin_keeps_it(session, fresh):
    tokens = fresh(20)
    end = put(session, tokens)
    assert session.pin(end) == [Status.OK]
    assert session.reclaim(end, prefix=True) == [Status.REFUSED]
    assert session.find(tokens) == 20
    assert session.unpin(end) == [Status.OK]
    assert session.unpin(end) == [Status.MISS]
    assert session.reclaim(end + bytes(32), below=True, prefix=True) == [Status.OK, Status.MISS]
    assert session.find(tokens) == 0
    with pytest.raises(ValueError):
        session.reclaim(end)
    with pytest.raises(ValueError):
        session.pin(b"short")


def test_what_an_engine_tells_has_to_be_possible(session):
    session.tell(batch_tokens=512)
    session.tell(prompts=1, prompt_tokens=100, tail_tokens=4, kv_tokens=96, hit_tokens=64)
    with pytest.raises(ValueError, match="prompt_tokens"):
        session.tell(prompts=1, prompt_tokens=100, hit_tokens=101)
    with pytest.raises(OverflowError):
        session.tell(prompts=-1)
    assert session.info().attached


def test_a_session_sees_or_stores_nothing_when_told_so(daemon, session, fresh):
    tokens = fresh(20)
    put(session, tokens)
    with Session(layout(), socket=daemon.socket, loads=False) as blind:
        assert blind.find(tokens) == 0
        assert blind.acquire(tokens)[0] is Status.MISS
        put(blind, fresh(20))
    with Session(layout(), socket=daemon.socket, stores=False) as silent:
        assert silent.put(fresh(20), b"x") is Status.REFUSED
        eventually(lambda: silent.find(tokens) == 20)


def test_a_match_can_bypass_the_store(session, fresh):
    tokens = fresh(16)
    put(session, tokens)
    chain, _ = digest_chain(tokens, 16)
    digests = b"".join(chain)
    assert session.match(digests, bypass=True, state=True).state_boundaries == 0
