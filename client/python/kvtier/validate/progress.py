# SPDX-License-Identifier: Apache-2.0
"""How far a run is, on a terminal; elsewhere a line for each part that is done."""
from __future__ import annotations

from types import TracebackType
from typing import Optional, Type

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeElapsedColumn, TimeRemainingColumn


class Bars:
    """Standard output is left to the result."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._progress.stop()

    def begin(self, step: str, total: float, done: float = 0) -> None:
        self._tasks[step] = self._progress.add_task(step, total=total, completed=int(done), what="")

    def reach(self, step: str, done: float, what: str = "") -> None:
        self._progress.update(self._tasks[step], completed=done, what=escape(what))

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)
