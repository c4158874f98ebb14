# SPDX-License-Identifier: Apache-2.0
"""What an engine is told at its start when kvtier cannot serve it."""
from __future__ import annotations


class Refused(ValueError):
    """This engine cannot use kvtier; the text says why, and what would help."""

    def __init__(self, why: str) -> None:
        super().__init__(f"kvtier: {why}")
