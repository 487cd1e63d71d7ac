"""Tables for people: one look for all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich import box
from rich.console import Console
from rich.table import Table

BLOCKS = "▁▂▃▄▅▆▇█"
"""Heights of a small chart."""

PLAIN_WIDTH = 120
"""Columns of output that does not go to a terminal."""


def console(stderr: bool = False) -> Console:
    """The console of a command; as wide as the terminal, or 120 columns."""
    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=PLAIN_WIDTH)


def speaker(console: Console) -> Callable[[str], None]:
    """What prints lines of others as they are, above any live display."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def table(title: str, texts: Iterable[str], numbers: Iterable[str], last: Iterable[str] = ()) -> Table:
    """An empty table with columns of text, then of numbers, then of text again; numbers are never cut."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for name in texts:
        made.add_column(name, overflow="fold")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    for name in last:
        made.add_column(name, overflow="fold")
    return made
