"""Errors meant for the user: what is wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DONE, BUG, USER_ERROR, SAVED, REWIND, CTRL_C = 0, 1, 2, 75, 76, 130
"""Exit codes of all commands: done, an error in Gristmill itself, something the user can put right, stopped with everything saved (run the
same command again: EX_TEMPFAIL), a trainer alone that wants to be rewound after a spike, Ctrl-C, likewise."""

LISTED = 30
"""Names that an error lists at most."""


class GristmillError(Exception):
    """A mistake or a condition that the user can act on; shown without a traceback, exit code 2.

    Args:
        what: what is wrong, with the offending value.
        where: file, line, field or table it was found in.
        fix: what to do.
    """

    exit_code = USER_ERROR

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        super().__init__(what, where, fix)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.fix:
            parts.append(f"-> {self.fix}")
        return "\n  ".join(parts)


class RecipeError(GristmillError):
    """A recipe that cannot be used."""


class InputError(GristmillError):
    """Input that is missing, empty, or worse than its stated budget for bad records."""


class PlanError(GristmillError):
    """A plan that asks for more than the budgets hold."""


class LakeError(GristmillError):
    """A lake that is locked, full, damaged, or of another version."""


class StoreError(LakeError):
    """An object store does not answer, or refuses: nothing is known of what it holds."""


class InUse(LakeError):
    """Another live process holds a lock."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest allowed name, else a list of them, cut where it is long."""
    allowed = sorted(allowed)
    if not allowed:
        return ""
    close = difflib.get_close_matches(name, allowed, n=1)
    more = f", and {len(allowed) - LISTED} more" if len(allowed) > LISTED else ""
    return f"; did you mean {close[0]!r}?" if close else f"; one of {', '.join(allowed[:LISTED])}{more}"
