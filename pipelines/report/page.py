"""Makes the report's page: data and charts into a template that escapes everything, with scripts and styles in the page itself.

Text of documents is hostile. It reaches the page through Jinja's automatic escaping or as JSON without ``<``, and nothing else; scripts
and styles are let through by their hashes alone, so that even text that got into the page as markup would not run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from curate.alarms import describe
from pipelines.progress import Tell, untold
from pipelines.query import shown
from pipelines.report.ablations import ablation_charts
from pipelines.report.bundle import vega_bundle
from pipelines.report.charts import Chart, clusters, funnel, languages, lengths, reasons, shown_sources, signals
from pipelines.report.curves import compared, run_charts
from pipelines.report.data import report_data
from schemas.errors import GristmillError

Json = Any

_INVISIBLE = re.compile("[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Controls, among them those that turn the direction of text around: shown as what they are."""


def write_report(root: Path, target: Path, tell: Tell = untold) -> Path:
    """Write the report of a lake as one HTML file that needs no network; it appears whole or not at all.

    Args:
        root: the lake.
        target: the file, replaced when it is there.
        tell: see ``report_data``.

    Raises:
        LakeError: there is no lake.
        GristmillError: the file cannot be written, or the extra ``report`` is not installed.
    """
    page = render_report(root, tell)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise GristmillError(f"cannot write the report: {error.strerror}", where=str(target)) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def render_report(root: Path, tell: Tell = untold) -> str:
    """The report as text."""
    scripts = [vega_bundle(), asset("charts.js")]
    style = asset("style.css")
    policy = f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes([style])}; base-uri 'none'; form-action 'none'"
    return render(
        "report.html.j2", live=False, policy=policy, scripts=[*map(Markup, scripts)], style=Markup(style), **report_context(root, tell)
    )


def report_context(root: Path, tell: Tell = untold) -> dict[str, Json]:
    """What the report's template takes besides scripts and styles."""
    found = report_data(root, tell)
    names = shown_sources(found["sources"])
    sections: dict[str, list[Chart]] = {
        "funnel": funnel(found["outcomes"]),
        "reasons": reasons(found["reasons"], names),
        "lengths": lengths(found["lengths"]),
        "languages": languages(found["languages"]),
        "signals": signals(found["signals"]),
        "clusters": clusters(found["cluster_sizes"], found["similarities"]),
        "compared": compared(found["runs"]),
        "ablation": ablation_charts(found["ablation"]),
    }
    runs = [run_charts(run, number, names) for number, run in enumerate(found["runs"])]
    specs = {chart.key: chart.spec for charts in (*sections.values(), *runs) for chart in charts}
    return {
        "found": found,
        "sections": sections,
        "runs": list(zip(found["runs"], runs, strict=True)),
        "alarms": [describe(alarm) for alarm in found["alarms"]],
        "specs": specs,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": version("gristmill"),
    }


def render(template: str, **context: Json) -> str:
    """Fill a template."""
    return environment().get_template(template).render(**context)


@cache
def environment() -> Environment:
    """Templates that escape every value, and fail on a name that is not given."""
    made = Environment(
        loader=PackageLoader("pipelines.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"visible": visible, "count": _count, "size": _size, "share": _share, "number": _number}
    made.filters |= {"extract": _extract, "cells": _cells}
    return made


@cache
def asset(name: str) -> str:
    """A script or style of the page."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def visible(text: object) -> str:
    """Text with control, direction and invisible characters written as their code points."""
    return _INVISIBLE.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", str(text).replace("\r\n", "\n"))


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _size(value: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.3g} {unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else "-" if value is None else visible(value)


def _extract(line: Mapping[str, Json], names: Sequence[str]) -> list[Json]:
    return [line[name] for name in names]


def _cells(line: Mapping[str, Json]) -> list[Json]:
    """Values of a row, nested ones as `gristmill sql` shows them."""
    return [shown(value) if isinstance(value, list | dict) else value for value in line.values()]
