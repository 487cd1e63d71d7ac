"""Tables for people: one look for all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

BLOCKS = "▁▂▃▄▅▆▇█"
"""Heights of a small chart."""

PLAIN_WIDTH = 120
"""Columns of output that does not go to a terminal."""


_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def printable(text: str) -> str:
    """Text with each control character replaced: a document's own must not move the cursor, recolour or retitle a terminal."""
    return text.translate(_CONTROLS)


class _Plain(Console):
    """A console to which text can say nothing but text; what rich itself says to the terminal passes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console(stderr: bool = False) -> Console:
    """The console of a command; as wide as the terminal, or 120 columns. Control characters of documents do not pass."""
    made = _Plain(stderr=stderr)
    return made if made.is_terminal else _Plain(stderr=stderr, width=PLAIN_WIDTH)


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
