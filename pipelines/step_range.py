"""Ranges of steps as commands take them: ``120..140``, both included."""

from __future__ import annotations

import re

from schemas.errors import GristmillError

_RANGE = re.compile(r"(\d{1,15})\.\.(\d{1,15})")


def step_range(text: str, where: str) -> tuple[int, int] | None:
    """First and last step of ``120..140``; None where the text has another form.

    Args:
        text: what a user wrote.
        where: command or option, for the error.

    Raises:
        GristmillError: the last step is before the first.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise GristmillError(f"{text!r} is no range of steps: it ends before it begins", where=where, fix=f"write {last}..{first}")
    return first, last


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step of ``120..140``, or of one step.

    Raises:
        GristmillError: it is neither.
    """
    found = step_range(text if ".." in text else f"{text}..{text}", "steps")
    if found is None:
        raise GristmillError(f"{text!r} is no range of steps", where="steps", fix="write 120..140 (both included), or one step")
    return found
