# SPDX-License-Identifier: Apache-2.0
"""What a run has done so far, in a file that a later run may go on from.

It is written anew before and after each part, whole or not at all. It belongs to the settings that
it was begun with: of others nothing can be gone on from.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .failure import UsageError

NAME = "state.json"
VERSION = 1


class State:
    def __init__(self, folder: Path, settings: dict[str, Any], data: dict[str, Any]) -> None:
        self.path, self._data = folder / NAME, data
        self._data.update(version=VERSION, settings=settings)

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any], resume: bool) -> State:
        """UsageError: there is one already, or none to resume, or one of other settings."""
        path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = path.read_text() if path.exists() else None
        except OSError as why:
            raise UsageError(f"--out {folder}: {why.strerror}") from why
        if not resume:
            if text is not None:
                raise UsageError(
                    f"{path} is there already: go on with --resume, or choose another --out"
                )
            return cls(folder, settings, {})
        if text is None:
            raise UsageError(f"--resume: there is no {path} to go on from")
        return cls(folder, settings, _checked(path, text, settings))

    @property
    def seed(self) -> str:
        return str(self._data.setdefault("seed", os.urandom(8).hex()))

    def done(self, step: str) -> list[dict[str, Any]]:
        """The results of a step so far, in order."""
        results = self._data.setdefault("steps", {}).setdefault(step, [])
        assert isinstance(results, list)
        return results

    def attempt(self, step: str, part: str) -> int:
        """A part begins: which time, from 1, also if a run broke off in it."""
        attempts = self._data.setdefault("attempts", {}).setdefault(step, {})
        attempts[part] = n = attempts.get(part, 0) + 1
        self.save()
        assert isinstance(n, int)
        return n

    def add(self, step: str, result: dict[str, Any]) -> None:
        self.done(step).append(result)
        self.save()

    def note(self, **facts: Any) -> None:
        """About the run as a whole."""
        self._data.setdefault("facts", {}).update(facts)

    @property
    def all(self) -> dict[str, Any]:
        return self._data

    def save(self) -> None:
        write_whole(self.path, json.dumps(self._data, indent=1))


def write_whole(path: Path, text: str) -> None:
    """UsageError: it cannot be written there."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError as why:
        raise UsageError(f"{path}: {why.strerror}") from why


def _checked(path: Path, text: str, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        data = json.loads(text)
        before, version = data["settings"], data["version"]
    except (ValueError, KeyError, TypeError) as why:
        raise UsageError(f"{path} is no state of kvtier-validate") from why
    if version != VERSION:
        raise UsageError(f"{path} is of version {version}, not {VERSION}")
    other = sorted(name for name in settings if settings[name] != before.get(name))
    if other:
        name = other[0]
        raise UsageError(
            f"--resume: {path} was begun with another {name}: {before.get(name)!r}, "
            f"now {settings[name]!r}"
        )
    assert isinstance(data, dict)
    return data
