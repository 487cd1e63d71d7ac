"""Shows what an ablation found: a table with intervals for terminals, and an SVG of every seed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from rich.console import Console

from pipelines.tables import table

Json = Any
COLOURS = ("#b3541e", "#1f6f8b")
"""Of the first recipe and of the second."""
_LEFT, _MIDDLE, _RIGHT, _STEP, _TOP = 130, 470, 760, 56, 64


def print_ablation(found: Json, console: Console) -> None:
    """Print the table: bits per byte of both recipes on each held-out set, and the paired difference with its interval."""
    a, b = found["recipes"]
    shown = table("Bits per byte, lower is better", ("held out by",), (a, b, f"{b} - {a}", "95 % interval"), ("", "what it shows"))
    ends = _ends([line[key] for line in found["differences"] for key in ("low", "high")] + [0.0])
    for line in found["differences"]:
        difference, interval = f"{line['mean']:+.4f}", f"{line['low']:+.4f} to {line['high']:+.4f}"
        cells = (f"{line['first']:.4f}", f"{line['second']:.4f}", difference, interval)
        shown.add_row(line["dataset"], *cells, strip(line["low"], line["mean"], line["high"], ends), line["words"])
    console.print(shown)
    console.print(
        f"{found['seeds']} paired seeds, {found['parameters']:,} parameters, {found['tokens']:,} tokens each; Student's interval of the "
        "paired differences",
        highlight=False,
    )


def strip(low: float, mean: float, high: float, ends: tuple[float, float], width: int = 25) -> str:
    """An interval in a line of characters; the bar stands at zero."""
    place = {name: round((value - ends[0]) / (ends[1] - ends[0]) * (width - 1)) for name, value in (("l", low), ("m", mean), ("h", high))}
    cells = ["─" if place["l"] <= cell <= place["h"] else " " for cell in range(width)]
    cells[round(-ends[0] / (ends[1] - ends[0]) * (width - 1))] = "│"
    cells[place["m"]] = "●"
    return "".join(cells)


def draw(found: Json) -> str:
    """The SVG: for each held-out set every seed's two values, joined, and beside them the difference with its interval."""
    a, b = found["recipes"]
    height = _TOP + _STEP * len(found["differences"]) + 40
    bits = _ends([row["bits_per_byte"] for row in found["runs"]])
    gaps = _ends([line[key] for line in found["differences"] for key in ("low", "high")] + [0.0])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24">bits per byte on what was held out, {found["seeds"]} seeds: '
        f'<tspan fill="{COLOURS[0]}">● {escape(a)}</tspan> <tspan fill="{COLOURS[1]}">● {escape(b)}</tspan></text>',
        f'<text x="{_MIDDLE + 30}" y="44">{escape(b)} − {escape(a)}, 95 %</text>',
        *_axis(bits, _LEFT, _MIDDLE - 20, height),
        *_axis(gaps, _MIDDLE + 30, _RIGHT, height),
    ]
    zero = _at(0.0, gaps, _MIDDLE + 30, _RIGHT)
    parts.append(f'<line x1="{zero}" y1="{_TOP - 10}" x2="{zero}" y2="{height - 34}" stroke="#999" stroke-dasharray="3 3"/>')
    for number, line in enumerate(found["differences"]):
        y = _TOP + _STEP * number + 20
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(line["dataset"])}</text>')
        parts += _seeds(found, line["dataset"], y, bits)
        low, mean, high = (_at(line[key], gaps, _MIDDLE + 30, _RIGHT) for key in ("low", "mean", "high"))
        parts.append(f'<line x1="{low}" y1="{y}" x2="{high}" y2="{y}" stroke="#333" stroke-width="2"/>')
        parts.append(f'<circle cx="{mean}" cy="{y}" r="4" fill="#333"/>')
        parts.append(
            f'<text x="{(_MIDDLE + 30 + _RIGHT) / 2:.1f}" y="{y + 22}" text-anchor="middle" fill="#555">{escape(line["words"])}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _seeds(found: Json, dataset: str, y: int, ends: tuple[float, float]) -> list[str]:
    """Dots of both recipes by seed, one below the other, joined."""
    mine = [row for row in found["runs"] if row["dataset"] == dataset]
    seeds = sorted({row["seed"] for row in mine})
    parts = []
    for place, seed in enumerate(seeds):
        height = y + 24 * ((place + 0.5) / len(seeds) - 0.5)
        values = [next(row["bits_per_byte"] for row in mine if row["seed"] == seed and row["recipe"] == name) for name in found["recipes"]]
        x = [_at(value, ends, _LEFT, _MIDDLE - 20) for value in values]
        parts.append(f'<line x1="{x[0]}" y1="{height:.1f}" x2="{x[1]}" y2="{height:.1f}" stroke="#ccc"/>')
        parts += [f'<circle cx="{at}" cy="{height:.1f}" r="3.5" fill="{colour}"/>' for at, colour in zip(x, COLOURS, strict=True)]
    return parts


def _axis(ends: tuple[float, float], left: int, right: int, height: int) -> list[str]:
    y = height - 34
    labels = [(left, "start", ends[0]), (right, "end", ends[1])]
    text = [f'<text x="{x}" y="{y + 18}" text-anchor="{anchor}" fill="#555">{value:.3f}</text>' for x, anchor, value in labels]
    return [f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#555"/>', *text]


def _at(value: float, ends: tuple[float, float], left: int, right: int) -> float:
    return round(left + (value - ends[0]) / (ends[1] - ends[0]) * (right - left), 1)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Least and most, a little apart."""
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.01
    return low - margin, high + margin
