"""Which families of signals a pass computes, as bits; `schemas.signals.SIGNAL_FAMILIES` lists their columns."""

from __future__ import annotations

FILTERS = 1
"""Size, Gopher quality and repetition, FineWeb, C4: what the rule sets of the field read."""
READING = 2
"""Syllables and the reading grade; needs FILTERS."""
COMPRESSION = 4
CODE = 8
ALL = FILTERS | READING | COMPRESSION | CODE
