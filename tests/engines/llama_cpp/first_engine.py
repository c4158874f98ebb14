# SPDX-License-Identifier: Apache-2.0
"""An engine process that stores a prompt's state, continues, and then waits to be killed.

    first_engine.py MODEL.gguf SOCKET N_TOKENS OUT.json

OUT.json gets the 32 tokens and the sums of their logits.
"""
import json
import signal
import sys
from pathlib import Path

from llama import Engine

LICENCE = Path("/usr/share/common-licenses/GPL-3")


def main(model, socket, n_tokens, out):
    engine = Engine(model)
    store = engine.open_store(socket)
    assert store.session.wait_attached(30).name == "OK"
    assert store.prefill(engine.tokenize(LICENCE.read_bytes(), int(n_tokens)), engine.decode) == 0
    scratch = Path(out + ".new")
    scratch.write_text(json.dumps(engine.greedy(32)))
    scratch.rename(out)
    signal.pause()


main(*sys.argv[1:])
