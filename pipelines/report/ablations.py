"""Charts of the lake's last ablation: both recipes by seed on each held-out set, and their differences with intervals."""

from __future__ import annotations

from typing import Any

import altair as alt

from pipelines.report.charts import Chart, axis, data, finish, tip

Json = Any


def ablation_charts(found: dict[str, Json] | None) -> list[Chart]:
    """Charts of what ``ablation.read_ablation`` reads; none without an ablation."""
    return [] if found is None else [_seeds(found), _differences(found)]


def _seeds(found: dict[str, Json]) -> Chart:
    """Both recipes' bits per byte, the two of one seed joined."""
    recipes = found["recipes"]
    rows = [
        {name: row[name] for name in ("recipe", "dataset", "bits_per_byte")} | {"seed": f"seed {row['seed']}"}
        for row in sorted(found["runs"], key=lambda row: (row["dataset"], row["seed"], recipes.index(row["recipe"])))
    ]
    where = {
        "x": alt.X("bits_per_byte:Q", title="bits per byte, lower is better", axis=axis(".3f"), scale=alt.Scale(zero=False)),
        "y": alt.Y("dataset:N", title=None, scale=alt.Scale(domain=_sets(found)), axis=alt.Axis(grid=True)),
        "yOffset": alt.YOffset("seed:N", scale=alt.Scale(domain=[f"seed {seed}" for seed in range(found["seeds"])])),
    }
    joined = data(rows).mark_line(color="#8a8f98", opacity=0.6).encode(**where, detail=["dataset:N", "seed:N"])
    legend = alt.Legend(orient="top", title=None)
    dots = (
        data(rows)
        .mark_point(size=70, filled=True, opacity=1)
        .encode(
            **where,
            color=alt.Color("recipe:N", scale=alt.Scale(domain=recipes, range="category"), legend=legend),
            shape=alt.Shape("recipe:N", scale=alt.Scale(domain=recipes), legend=legend),
            tooltip=[
                tip("dataset:N", "held out by"),
                tip("recipe:N", "recipe"),
                tip("seed:N", "seed"),
                tip("bits_per_byte:Q", "bits per byte", ".4f"),
            ],
        )
    )
    about = (
        f"{found['parameters']:,} parameters trained on {found['tokens']:,} tokens by each recipe: bits per byte on what each recipe held "
        "out. The two trainings of one seed are joined."
    )
    table = (("dataset", "recipe", "seed", "bits_per_byte"), rows)
    height = 40 + 18 * found["seeds"] * len(_sets(found))
    return finish("ablation-seeds", "Bits per byte by seed", about, alt.layer(joined, dots), height, table)


def _differences(found: dict[str, Json]) -> Chart:
    """The second recipe less the first, with Student's interval of the paired differences."""
    first, second = found["recipes"]
    rows = found["differences"]
    place = alt.Y("dataset:N", title=None, scale=alt.Scale(domain=_sets(found)))
    told = [tip("dataset:N", "held out by"), tip("mean:Q", "difference", "+.4f"), tip("low:Q", "from", "+.4f"), tip("high:Q", "to", "+.4f")]
    told.append(tip("words:N", "it shows"))
    title = f"{second} less {first}, bits per byte"
    interval = data(rows).mark_bar(height=5, color="#2b87c8")
    interval = interval.encode(x=alt.X("low:Q", title=title, axis=axis("+.3f")), x2="high:Q", y=place, tooltip=told)
    mean = data(rows).mark_point(shape="diamond", size=110, filled=True, opacity=1, color="#d55e00")
    mean = mean.encode(x="mean:Q", y=place, tooltip=told)
    zero = data([{"at": 0}]).mark_rule(strokeDash=[4, 4], color="#8a8f98").encode(x="at:Q")
    about = f"Below zero {second} is better. Bars are 95 % intervals over {found['seeds']} paired seeds: what crosses zero shows nothing."
    table = (("dataset", "first", "second", "mean", "low", "high", "words"), rows)
    return finish("ablation-differences", "Differences", about, alt.layer(zero, interval, mean), 60 + 34 * len(rows), table)


def _sets(found: dict[str, Json]) -> list[str]:
    """Held-out sets, in the order of the recipes."""
    return [line["dataset"] for line in found["differences"]]
