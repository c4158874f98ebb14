# SPDX-License-Identifier: Apache-2.0
"""kvtier-validate: the command. Exit status 0 fine, 1 wrong bytes, 2 usage, 3 the engine fails."""
from __future__ import annotations

import sys
import traceback
from typing import Optional, Sequence

FINE, WRONG, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
NEEDED = ("httpcore", "httpx", "jinja2", "prometheus_client", "rich")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    try:
        from .run import run
    except ModuleNotFoundError as why:
        package = (why.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        return _complain(f"{package} is missing: pip install 'kvtier[validate]'", USAGE)
    from .failure import EngineError, UsageError
    from .options import parse

    try:
        return run(parse(sys.argv[1:] if arguments is None else arguments))
    except UsageError as why:
        return _complain(f"{why} (--help tells more)", USAGE)
    except EngineError as why:
        return _complain(str(why), FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted; --resume goes on", INTERRUPTED)
    except Exception as why:
        # Python's own status of this, 1, would say that bytes were wrong.
        traceback.print_exc()
        return _complain(f"a fault of its own: {type(why).__name__}: {why}", FAILED)


def _complain(text: str, status: int) -> int:
    print(f"kvtier-validate: {text}", file=sys.stderr)
    return status
