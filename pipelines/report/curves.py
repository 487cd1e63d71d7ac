"""Charts of a training run: the plan, the order, losses by source with stage boundaries and early stops, rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from pipelines.report.charts import Chart, axis, colour, data, finish, merged, numbers, stacked, tip

Json = Any
Rows = list[dict[str, Json]]

GREY = "#8a8f98"


def run_charts(run: dict[str, Json], number: int, names: Sequence[str]) -> list[Chart]:
    """Charts of one run.

    Args:
        run: see ``training.runs_data``.
        number: its place among the runs shown, which makes keys unique.
        names: sources with a colour of their own.
    """
    key = f"run-{number}"
    made = [*_plan(run["plan"], key, names), *_order(run["shares"], key, names)]
    curves, marks = run["curves"], _boundaries(run)
    average = f" Each point is the mean of {run['averaged']:,} steps." if run["averaged"] > 1 else ""
    trained = [line | {"source": line["name"].partition("/")[2]} for line in curves if line["name"].startswith("loss/")]
    held = [line | {"source": line["name"].partition("/")[2]} for line in curves if line["name"].startswith("heldout/")]
    boundaries = " Dashed lines are where stages begin, diamonds where one stopped early."
    made += _lines(
        f"{key}-loss",
        "Training loss by source",
        trained,
        "nats per token",
        f"Mean loss of the rows of each step.{average}{boundaries}",
        marks,
        names,
    )
    made += _lines(
        f"{key}-heldout",
        "Held-out loss by source",
        held,
        "nats per token",
        f"Loss on documents never trained on.{boundaries}",
        marks,
        names,
        points=True,
    )
    for name, title, unit, about in (
        ("lr", "Learning rate", "learning rate", "As each step used it."),
        ("tokens_per_second", "Throughput", "tokens per second", "Tokens trained on in each second, by step."),
        ("grad_norm", "Gradient norm", "norm", "Before clipping; the scale is logarithmic."),
    ):
        made += _single(f"{key}-{name}", title, [line for line in curves if line["name"] == name], unit, about + average, marks)
    return made


def _boundaries(run: dict[str, Json]) -> list[Any]:
    """Rules where stages begin, and diamonds where they stopped early."""
    stages = [{"step": line["first_step"], "stage": line["stage"]} for line in run["boundaries"]]
    ends = {line["position"]: line["last_step"] for line in run["boundaries"]}
    stops = [
        {"step": ends.get(stage["position"], stage["next_step"]), "stage": stage["stage"], "why": stage["detail"]}
        for stage in run["stages"]
        if stage["reason"] == "early_stop"
    ]
    layers = []
    if stages:
        dashed = data(stages).mark_rule(strokeDash=[4, 4], opacity=0.55, color=GREY)
        layers.append(dashed.encode(x="step:Q", tooltip=[tip("stage:N", "stage begins"), tip("step:Q", "step", ",")]))
        names = data(stages).mark_text(align="left", baseline="top", dx=4, dy=2, fontSize=11, color=GREY)
        layers.append(names.encode(x="step:Q", y=alt.value(0), text="stage:N"))
    if stops:
        diamonds = data(stops).mark_point(shape="diamond", size=90, filled=True, color="#c2397b", opacity=1)
        told = [tip("stage:N", "stopped early"), tip("why:N", "why"), tip("step:Q", "step", ",")]
        layers.append(diamonds.encode(x="step:Q", y=alt.value(8), tooltip=told))
    return layers


def _steps() -> Any:
    return alt.X("step:Q", title="step", axis=axis("~s", 8, grid=False), scale=alt.Scale(nice=False))


def _lines(
    key: str, title: str, rows: Rows, unit: str, about: str, marks: list[Any], names: Sequence[str], points: bool = False
) -> list[Chart]:
    shown = [row for row in rows if row["source"] in names]
    if not shown:
        return []
    lines = (
        data(shown)
        .mark_line(point=points, interpolate="linear", strokeWidth=1.8)
        .encode(
            x=_steps(),
            y=numbers("value:Q", unit, "~g", zero=False),
            color=colour(names, "stroke"),
            detail="position:N",
            tooltip=[tip("source:N", "source"), tip("stage:N", "stage"), tip("step:Q", "step", ","), tip("value:Q", unit, ".4f")],
        )
    )
    return [finish(key, title, about, alt.layer(lines, *marks), 260)]


def _single(key: str, title: str, rows: Rows, unit: str, about: str, marks: list[Any]) -> list[Chart]:
    if not rows:
        return []
    scale = {"type": "log"} if "logarithmic" in about and all(row["value"] > 0 for row in rows) else {}
    line = (
        data(rows)
        .mark_line(color="#2b87c8", strokeWidth=1.8)
        .encode(
            x=_steps(),
            y=numbers("value:Q", unit, "~g" if key.endswith("lr") else "~s", **scale),
            detail="position:N",
            tooltip=[tip("stage:N", "stage"), tip("step:Q", "step", ","), tip("value:Q", unit, ",.4~g")],
        )
    )
    return [finish(key, title, about, alt.layer(line, *marks), 170)]


def _plan(lines: Rows, key: str, names: Sequence[str]) -> list[Chart]:
    if not lines:
        return []
    rows = merged(lines, names, ("stage", "position"), ("tokens", "epochs", "returned"))
    order = [line["stage"] for line in sorted(rows, key=lambda line: line["position"])]
    made = []
    for name, title, form, about in (
        ("tokens", "Tokens by stage", "~s", "What each stage is planned to use, in token positions, by source."),
        (
            "epochs",
            "Epochs by stage",
            ".2~f",
            "Uses of each source's rows in each stage: 1 is every row once. Bars of several sources stand on each other.",
        ),
    ):
        chart = (
            data(rows)
            .mark_bar()
            .encode(
                y=alt.Y("stage:N", sort=list(dict.fromkeys(order)), title=None),
                x=alt.X(f"{name}:Q", stack="zero", title=name, axis=axis(form)),
                color=colour(names),
                tooltip=[
                    tip("stage:N", "stage"),
                    tip("source:N", "source"),
                    tip("tokens:Q", "tokens", ","),
                    tip("epochs:Q", "epochs", ".3f"),
                    tip("returned:Q", "of it returned by earlier stages", ","),
                ],
            )
        )
        made.append(finish(f"{key}-{name}", title, about, chart, 70 + 30 * len(set(order)), (("stage", "source", name), rows)))
    return made


def _order(lines: Rows, key: str, names: Sequence[str]) -> list[Chart]:
    """Which source rows come from, step by step."""
    if not lines:
        return []
    rows = merged(lines, names, ("stage", "segment", "first_step", "end_step", "why"), ("share", "rows"))
    chart = (
        data(stacked(rows, ("segment",), "share"))
        .mark_rect(strokeWidth=0)
        .encode(
            x=alt.X("first_step:Q", title="step", axis=axis("~s", 8, grid=False), scale=alt.Scale(nice=False)),
            x2="end_step:Q",
            y=alt.Y("base:Q", title="share of rows", axis=alt.Axis(format="%", tickCount=4), scale=alt.Scale(domain=[0, 1])),
            y2="top:Q",
            color=colour(names),
            tooltip=[
                tip("stage:N", "stage"),
                tip("source:N", "source"),
                tip("share:Q", "share", ".1%"),
                tip("rows:Q", "rows", ","),
                tip("first_step:Q", "from step", ","),
                tip("end_step:Q", "to step", ","),
                tip("why:N", "why"),
            ],
        )
    )
    about = "The curriculum in the order in which it is trained on: at each step, which share of the rows comes from which source."
    return [finish(f"{key}-order", "Curriculum order", about, chart, 170)]


def compared(runs: Rows) -> list[Chart]:
    """Held-out loss of all shown runs on one scale, when there are several."""
    rows = [line | {"source": run["run"]} for run in runs for line in run["curves"] if line["name"] == "heldout"]
    names = list(dict.fromkeys(row["source"] for row in rows))
    if len(names) < 2:
        return []
    lines = (
        data(rows)
        .mark_line(point=True)
        .encode(
            x=_steps(),
            y=numbers("value:Q", "nats per token", "~g", zero=False),
            color=colour(names),
            tooltip=[tip("source:N", "run"), tip("stage:N", "stage"), tip("step:Q", "step", ","), tip("value:Q", "held-out loss", ".4f")],
        )
    )
    return [finish("compared", "Runs compared", "Held-out loss of each run of this lake, by step.", lines, 260)]
