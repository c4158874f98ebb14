# SPDX-License-Identifier: Apache-2.0
"""llama_cpp.Llama: what it generates after a resume, with and without a stored state."""
import itertools

import llama_cpp
import pytest

from kvtier import Status
from kvtier.llama_cpp import StateStore


@pytest.mark.parametrize("name", ["smollm2", "gemma3", "hybrid"])
def test_llama_resumes(name, daemon, model_path, text, engine_of):
    tokens = text(engine_of(name), 150).tolist()

    def run():
        llm = llama_cpp.Llama(
            str(model_path(name)), n_ctx=512, flash_attn=True, verbose=False, n_threads=2
        )
        with StateStore.of(llm, socket=daemon.socket) as store:
            assert store.session.wait_attached(30) is Status.OK
            restored = store.resume(llm, tokens)
            answer = list(itertools.islice(llm.generate(tokens, temp=0.0), 16))
        llm.close()
        return restored, answer

    cold, warm = run(), run()
    assert (cold[0], warm[0]) == (0, 149)
    assert cold[1] == warm[1] and len(set(cold[1])) > 3
