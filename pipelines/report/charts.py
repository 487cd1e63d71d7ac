"""The report's charts: plain rows in, Vega-Lite specifications out, built and validated by Altair.

Colours come from ranges that the page's script sets for the light and the dark theme. Both are safe for the common kinds of colour
blindness, and no chart tells by colour alone what its tooltips and table do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

Json = Any
Rows = list[dict[str, Json]]

OUTCOMES = ("kept", "held out", "duplicate", "dropped", "set aside")
OUTCOME_COLOURS = ("#2b87c8", "#7cc4f0", "#e69f00", "#d55e00", "#8a8f98")
MOST_SOURCES = 8
"""Sources with a colour of their own; the others share the last."""
OTHERS = "other sources"


@dataclass(frozen=True)
class Chart:
    """One chart of the page.

    Attributes:
        key: its place in the page and in the page's data.
        title: what it shows.
        about: one sentence: how to read it, units included; also what a screen reader says.
        spec: the Vega-Lite specification.
        table: the same figures for those who do not see it: names, then rows; none for curves.
    """

    key: str
    title: str
    about: str
    spec: dict[str, Json]
    table: tuple[Sequence[str], Sequence[Sequence[Json]]] | None = None


def finish(key: str, title: str, about: str, chart: Any, height: int, table: tuple[Sequence[str], Rows] | None = None) -> Chart:
    """A chart as wide as its place in the page."""
    spec = chart.properties(width="container", height=height).to_dict()
    rows = None if table is None else (table[0], [[row.get(name) for name in table[0]] for row in table[1]])
    return Chart(key, title, about, spec, rows)


def colour(names: Sequence[str], symbol: str = "square") -> Any:
    """Colour by source. A source keeps its place in the palette, and so its colour, in all charts."""
    scale = alt.Scale(domain=list(names), range="category")
    return alt.Color("source:N", scale=scale, sort=list(names), legend=alt.Legend(orient="top", title=None, symbolType=symbol))


def by_outcome(present: Iterable[str]) -> Any:
    """Colour by what became of documents; the legend holds the outcomes that are there, none for none."""
    there = set(present)
    values = [outcome for outcome in OUTCOMES if outcome in there]
    legend = alt.Legend(orient="top", title=None, values=values) if values else None
    return alt.Color("outcome:N", scale=alt.Scale(domain=list(OUTCOMES), range=list(OUTCOME_COLOURS)), legend=legend)


def axis(form: str = "~s", ticks: int = 5, **more: Json) -> Any:
    """An axis of numbers, each written by itself (0, 200, 1.2k), not all with one prefix."""
    return alt.Axis(labelExpr=f"format(datum.value, '{form}')", tickCount=ticks, **more)


def numbers(field: str, title: str, form: str = "~s", **scale: Json) -> Any:
    """A vertical axis of numbers."""
    return alt.Y(field, title=title, axis=axis(form), scale=alt.Scale(**scale) if scale else alt.Undefined)


def stacked(rows: Rows, keys: Sequence[str], value: str, order: Sequence[str] = ()) -> Rows:
    """Rows with ``base`` and ``top``: their places on each other where the keys are the same, outcomes in the order given."""
    tops: dict[tuple[Json, ...], float] = {}
    made = []
    for row in sorted(rows, key=lambda row: order.index(row["outcome"])) if order else rows:
        key = tuple(row[name] for name in keys)
        base = tops.get(key, 0)
        tops[key] = base + row[value]
        made.append(row | {"base": base, "top": tops[key]})
    return made


def data(rows: Iterable[dict[str, Json]]) -> Any:
    """Rows as inline data."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def tip(field: str, title: str, form: str = "") -> Any:
    """A line of a tooltip."""
    return alt.Tooltip(field, title=title, format=form) if form else alt.Tooltip(field, title=title)


def funnel(outcomes: Rows) -> list[Chart]:
    """What became of the records of each source, as shares of it."""
    totals: dict[str, int] = {}
    for line in outcomes:
        totals[line["source"]] = totals.get(line["source"], 0) + line["documents"]
    rows = [
        line | {"share": line["documents"] / totals[line["source"]], "order": OUTCOMES.index(line["outcome"]), "MB": line["bytes"] / 1e6}
        for line in outcomes
    ]
    order = sorted(totals, key=lambda source: (-totals[source], source))
    chart = (
        data(rows)
        .mark_bar(stroke="transparent", strokeWidth=1)
        .encode(
            y=alt.Y("source:N", sort=order, title=None),
            x=alt.X(
                "share:Q", stack="zero", title="share of the source's records", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=by_outcome(line["outcome"] for line in rows),
            order=alt.Order("order:Q"),
            tooltip=[
                tip("source:N", "source"),
                tip("outcome:N", "outcome"),
                tip("documents:Q", "documents", ","),
                tip("share:Q", "share", ".1%"),
                tip("MB:Q", "MB", ",.2f"),
            ],
        )
    )
    about = "Every record of each source by what became of it; duplicates and set-aside records are shown apart from dropped ones."
    table = (("source", "outcome", "documents", "share", "MB"), rows)
    return [finish("funnel", "What became of each record", about, chart, 60 + 30 * len(order), table)] if rows else []


def reasons(lines: Rows, names: Sequence[str]) -> list[Chart]:
    """Why documents went, by first reason."""
    if not lines:
        return []
    rows = merged(lines, names, ("reason",), ("documents", "bytes"))
    order = list(dict.fromkeys(line["reason"] for line in lines))
    chart = (
        data(rows)
        .mark_bar()
        .encode(
            y=alt.Y("reason:N", sort=order, title=None, axis=alt.Axis(labelLimit=190)),
            x=alt.X("sum(documents):Q", title="documents", axis=axis()),
            color=colour(names),
            tooltip=[tip("reason:N", "reason"), tip("source:N", "source"), tip("documents:Q", "documents", ",")],
        )
    )
    about = "Documents by the first reason that set them aside or dropped them, coloured by source."
    return [finish("reasons", "Why documents went", about, chart, 50 + 20 * len(order), (("reason", "source", "documents", "bytes"), rows))]


def lengths(lines: Rows) -> list[Chart]:
    """Length of documents, by what became of them."""
    if not lines:
        return []
    summed: dict[tuple[int, str], int] = {}
    for line in lines:
        key = (line["power"], line["state"].replace("_", " "))
        summed[key] = summed.get(key, 0) + line["documents"]
    rows = [{"low": 2**power, "high": 2 ** (power + 1), "outcome": state, "documents": count} for (power, state), count in summed.items()]
    chart = histogram(rows, "bytes (each bar twice as long)", alt.Scale(type="log", nice=False), legend=True)
    return [finish("lengths", "How long documents are", "Documents by length of their text, in UTF-8 bytes.", chart, 220)]


def histogram(rows: Rows, title: str, scale: Any, legend: bool) -> Any:
    """Bars from ``low`` to ``high``, the outcomes of their documents on each other."""
    from_field, to_field = ("from:Q", "to:Q") if "from" in rows[0] else ("low:Q", "high:Q")
    return (
        data(stacked(rows, ("low",), "documents", OUTCOMES))
        .mark_rect()
        .encode(
            x=alt.X("low:Q", title=title, scale=scale, axis=axis("~s" if scale.type == "log" else "~g", 6)),
            x2="high:Q",
            y=numbers("base:Q", "documents", zero=True),
            y2="top:Q",
            color=by_outcome({row["outcome"] for row in rows} if legend else ()),
            tooltip=[
                tip(from_field, "from", ",.4~g"),
                tip(to_field, "to", ",.4~g"),
                tip("outcome:N", "outcome"),
                tip("documents:Q", "documents", ","),
            ],
        )
    )


def languages(lines: Rows) -> list[Chart]:
    """Languages of all judged and of kept documents."""
    if not lines:
        return []
    rows = [
        {"language": line["language"], "of": of, "share": line[name] or 0.0, "documents": line[count]}
        for line in lines
        for of, name, count in (("all documents", "share", "documents"), ("kept documents", "kept_share", "kept"))
    ]
    order = [line["language"] for line in lines]
    chart = (
        data(rows)
        .mark_bar()
        .encode(
            y=alt.Y("language:N", sort=order, title=None),
            yOffset=alt.YOffset("of:N"),
            x=alt.X("share:Q", title="share of documents", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color(
                "of:N",
                scale=alt.Scale(domain=["all documents", "kept documents"], range=["#8a8f98", OUTCOME_COLOURS[0]]),
                legend=alt.Legend(orient="top", title=None),
            ),
            tooltip=[
                tip("language:N", "language"),
                tip("of:N", "of"),
                tip("documents:Q", "documents", ","),
                tip("share:Q", "share", ".2%"),
            ],
        )
    )
    about = "Share of each language (ISO 639) among all judged documents and among the kept ones."
    return [finish("languages", "Languages", about, chart, 50 + 30 * len(order), (("language", "of", "documents", "share"), rows))]


def signals(histograms: Rows) -> list[Chart]:
    """A histogram of each value that rules compare, with their thresholds."""
    return [_signal(f"signal-{number}", found) for number, found in enumerate(histograms)]


def _signal(key: str, found: dict[str, Json]) -> Chart:
    scale = alt.Scale(type="log", nice=False) if found["log"] else alt.Scale(zero=False, nice=False)
    rows = [
        {"from": row["low"], "to": row["high"], "outcome": row["state"], "documents": row["documents"]}
        | {"low": _place(row["low"], found["log"]), "high": _place(row["high"], found["log"])}
        for row in found["bins"]
    ]
    limits = [{"at": _place(each["threshold"], found["log"])} | each for each in found["thresholds"]]
    lines = (
        data(limits)
        .mark_rule(strokeDash=[5, 3], strokeWidth=2, color="#c2397b")
        .encode(x="at:Q", tooltip=[tip("rule:N", "rule"), tip("comparison:N", "drops"), tip("threshold:Q", "threshold", ",.6~g")])
    )
    rules = "; ".join(
        f"{each['rule']} drops {each['comparison']} {each['threshold']:,g} ({each['failed']:,} fail)" for each in found["thresholds"]
    )
    return finish(key, found["value"], rules, histogram(rows, found["value"], scale, legend=False) + lines, 150)


def _place(value: float, log: bool) -> float:
    """Where a value is drawn: on a logarithmic axis 0 has its place left of 1."""
    return max(value, 0.5) if log else value


def clusters(sizes: Rows, similarities: Rows) -> list[Chart]:
    """Sizes of clusters, and how similar near-duplicates are."""
    made = []
    if sizes:
        rows = [line | {"members": _range(2 ** line["power"], 2 ** (line["power"] + 1) - 1)} for line in sizes]
        chart = (
            data(rows)
            .mark_bar(color=OUTCOME_COLOURS[2])
            .encode(
                x=alt.X("members:O", sort=[row["members"] for row in rows], title="documents in the cluster", axis=alt.Axis(labelAngle=0)),
                y=numbers("clusters:Q", "clusters", type="symlog"),
                tooltip=[tip("members:O", "documents"), tip("clusters:Q", "clusters", ","), tip("duplicates:Q", "duplicates dropped", ",")],
            )
        )
        about = "Clusters by how many documents they hold, the kept one included; the scale is logarithmic."
        made.append(finish("cluster-sizes", "Sizes of clusters", about, chart, 200, (("members", "clusters", "duplicates"), rows)))
    if similarities:
        bins = [
            {"low": line["similarity"], "high": min(1.0, line["similarity"] + 0.02), "pairs": line["pairs"], "zero": 0}
            for line in similarities
        ]
        chart = (
            data(bins)
            .mark_bar(color=OUTCOME_COLOURS[2])
            .encode(
                x=alt.X(
                    "low:Q",
                    title="Jaccard similarity to the kept document",
                    scale=alt.Scale(zero=False, domainMax=1),
                    axis=axis(".2f"),
                ),
                x2="high:Q",
                y=numbers("pairs:Q", "near-duplicates", zero=True),
                y2="zero:Q",
                tooltip=[tip("low:Q", "from", ".2f"), tip("pairs:Q", "near-duplicates", ",")],
            )
        )
        about = "Near-duplicates by exact Jaccard similarity of word shingles to the document kept in their place."
        made.append(finish("similarities", "How similar near-duplicates are", about, chart, 200))
    return made


def shown_sources(sources: Rows) -> list[str]:
    """Sources that have a colour: the largest, and one name for all others."""
    ordered = [line["source"] for line in sorted(sources, key=lambda line: (-line["records_in"], line["source"]))]
    return ordered if len(ordered) <= MOST_SOURCES else [*ordered[: MOST_SOURCES - 1], OTHERS]


def merged(rows: Rows, names: Sequence[str], keys: Sequence[str], sums: Sequence[str]) -> Rows:
    """Rows with the sources that have no colour of their own added up."""
    found: dict[tuple[Json, ...], dict[str, Json]] = {}
    for row in rows:
        source = row["source"] if row["source"] in names else OTHERS
        key = (*(row[name] for name in keys), source)
        line = found.setdefault(key, {name: row[name] for name in keys} | {"source": source} | dict.fromkeys(sums, 0))
        for name in sums:
            line[name] += row[name]
    return list(found.values())


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
