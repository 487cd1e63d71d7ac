"""``gristmill ablate``: two recipes judged by what they do to a model at equal compute, on three held-out sets, over paired seeds.

Both recipes and a third, neutral one are curated once, and the documents that each holds out are the evaluation sets. Then both are curated
again without anything of the three sets, and models are trained that differ in nothing but the recipe: same tokenizer (the first recipe's),
size, number of tokens, and for each seed the same initial weights.

Failure model. Everything lies in a lake of its own. Steps of curation, checkpoints and what was measured of a finished run are published
whole, so that the same command does what is missing, from the last checkpoint of the run that was cut short.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.lots import read_lots
from curate.model_size import parameters as model_parameters
from curate.plan import plan_curriculum, training_lots
from curate.stage import prepare_stage
from curate.step import Progress
from pipelines.ablation_picture import draw
from pipelines.export import texts
from pipelines.paired import paired_interval
from pipelines.parameters import RunParameters
from pipelines.run import curate_lake
from pipelines.trainer import run_trainer
from schemas.curation import Decontaminate, EvaluationSet, Holdout, OptOut
from schemas.errors import GristmillError, RecipeError
from schemas.manifest import Snapshot, fingerprint
from schemas.recipe import Recipe
from schemas.settings import Lot, StageSettings
from schemas.stages import Stage, Tokenizer
from schemas.store import lock, publish, publish_json, read_json
from schemas.tables import ABLATIONS

Json = Any
Say = Callable[[str], None]

FOLDER = "ablation"
RESULTS = f"{FOLDER}/results.json"
ROWS = 128
"""Rows of each held-out set that every model is measured on."""
OVERLAP, SHORTEST = 50, 13
"""Words that a training document may not share with a held-out one in a row (Lee et al. 2022 have 50 tokens), where the recipe names no
n-gram of its own; held-out texts of fewer than 13 words are looked for by identity alone."""
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Arm:
    """One of the two recipes: as it is trained, and the snapshot with its rows."""

    recipe: Recipe
    snapshot: Snapshot


def ablate(both: Sequence[RunParameters], neutral: RunParameters, seeds: int, tokens: int | None, progress: Progress, say: Say) -> Json:
    """Compare two recipes; returns what ``read_ablation`` reads.

    Args:
        both: the recipes, in one lake that is used for nothing else.
        neutral: a recipe whose held-out documents belong to neither.
        seeds: trainings of each recipe.
        tokens: train each on this many, in one stage with the sources in proportion; None takes the recipes' own stages.
        progress: where steps of curation report.
        say: gets lines for people, the trainer's output among them.

    Raises:
        RecipeError: the recipes cannot be compared at equal compute, or one holds nothing out.
    """
    root, recipes = neutral.root, [parameters.load() for parameters in (*both, neutral)]
    _check(recipes, seeds)
    with lock(root / f".{FOLDER}", "ablate"):
        first = recipes[0]
        sets, shared = [], first.tokenizer
        for parameters, recipe in zip((*both, neutral), recipes, strict=True):
            say(f"{recipe.name}: held-out documents")
            snapshot = curate_lake(parameters, _alone(recipe, shared, first), progress)
            if shared.kind == "bpe":
                shared = Tokenizer(kind="file", path=str(root / snapshot.steps["tokenizer"][0].files["tokenizer"].path))
            sets.append(_hold(root, recipe.name, snapshot))
        arms = []
        for parameters, recipe in zip(both, recipes, strict=False):
            say(f"{recipe.name}: training documents, without anything of {', '.join(r.name for r in recipes)} that is held out")
            apart = _apart(root, _alone(recipe, shared, first), recipes, tokens)
            arms.append(Arm(apart, curate_lake(parameters, apart, progress)))
        trained = _equal_compute(root, arms)
        rows = _runs(root, arms, [lot for lots in sets for lot in lots], seeds, say)
        return _publish(root, recipes, arms, trained, rows)


def read_ablation(root: Path) -> Json | None:
    """What the lake's last ablation found, None where it has none.

    Keys: ``recipes`` (two names), ``parameters``, ``tokens``, ``seeds``, ``runs`` (as the table ``ablations``), and ``differences``, one
    for each held-out set: ``dataset``, ``first`` and ``second`` (means of bits per byte), ``mean``, ``low`` and ``high`` of the second less
    the first, and what they show in ``words``.
    """
    return read_json(root / RESULTS) if (root / RESULTS).is_file() else None


def _check(recipes: Sequence[Recipe], seeds: int) -> None:
    a, b, _ = recipes
    if seeds < LEAST_SEEDS:
        raise GristmillError(f"{seeds} seeds tell chance from nothing", where="--seeds", fix=f"take at least {LEAST_SEEDS}")
    if len({recipe.name for recipe in recipes}) < len(recipes):
        raise RecipeError(f"two recipes have one name: {', '.join(r.name for r in recipes)}", where="name", fix="name each differently")
    for field, left, right in (("model", a.model, b.model), ("pack.row_length", a.pack.row_length, b.pack.row_length)):
        if left != right:
            raise RecipeError(f"{a.name} has {left}, {b.name} has {right}: that is no equal compute", where=field, fix="make them equal")


def _alone(recipe: Recipe, tokenizer: Tokenizer, first: Recipe) -> Recipe:
    """A recipe as one generation, with the shared tokenizer and rows of the first one's length."""
    pack = recipe.pack.model_copy(update={"row_length": first.pack.row_length})
    return recipe.model_copy(update={"generations": "one", "tokenizer": tokenizer, "pack": pack, "choices": {}})


def _hold(root: Path, name: str, snapshot: Snapshot) -> list[Lot]:
    """Publish a recipe's held-out documents, for others to leave out, and return the lots of their rows under the recipe's name."""
    table = read_lots(root, snapshot)
    lots = [replace(table.lots[line["lot"]], source=name) for line in table.lines if line["split"] == "holdout"]
    if not lots:
        raise RecipeError("no document is held out", where=f"{name}: holdout", fix="raise holdout.share")
    found = [row for _, rows in texts(root, snapshot, "held_out") for row in rows.select(["doc_id", "text"]).to_pylist()]
    items = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    publish(root, _items(name), lambda path: _write(path, items))
    publish(root, _ids(name), lambda path: _write(path, "".join(f"{row['doc_id']}\n" for row in found)))
    return lots


def _items(name: str) -> str:
    return f"{FOLDER}/held-out/{name}.jsonl"


def _ids(name: str) -> str:
    return f"{FOLDER}/held-out/{name}.ids"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _apart(root: Path, recipe: Recipe, recipes: Sequence[Recipe], tokens: int | None) -> Recipe:
    """A recipe that trains on nothing of the held-out sets, never stops early, and holds nothing out itself."""
    own, names = recipe.decontaminate, [each.name for each in recipes]
    sets = {f"held_out_{name}".replace("-", "_")[:41]: EvaluationSet(paths=[str(root / _items(name))]) for name in names}
    settings = {"ngram": own.ngram, "min_words": own.min_words} if own else {"ngram": OVERLAP, "min_words": SHORTEST}
    decontaminate = Decontaminate(sets={**(own.sets if own else {}), **sets}, **settings)
    opt_out = OptOut(domains=recipe.opt_out.domains, ids=[*recipe.opt_out.ids, *(str(root / _ids(name)) for name in names)])
    whole = {"early_stop": None, "plateau": None, "eval_every": 0}
    stages = [stage.model_copy(update={"training": stage.training | whole}) for stage in recipe.stages]
    if tokens is not None:
        stages = [Stage(name="all", tokens=tokens, training=whole)]
    changes = {"holdout": Holdout(share=0), "decontaminate": decontaminate, "opt_out": opt_out, "stages": stages}
    return recipe.model_copy(update=changes)


def _equal_compute(root: Path, arms: Sequence[Arm]) -> int:
    """Token positions that each arm trains on.

    Raises:
        RecipeError: they are not the same.
    """
    planned = []
    for arm in arms:
        vocabulary = arm.snapshot.steps["tokenizer"][0].counts["vocabulary"]
        plans = plan_curriculum(arm.recipe, training_lots(read_lots(root, arm.snapshot).lines), vocabulary)
        planned.append(sum(plan.rows for plan in plans) * arm.recipe.pack.row_length)
    if len(set(planned)) > 1 or not planned[0]:
        counts = " and ".join(f"{arm.recipe.name} {count:,}" for arm, count in zip(arms, planned, strict=True))
        raise RecipeError(f"no equal compute: the stages come to {counts} tokens", where="stages", fix="give both the same with --tokens")
    return planned[0]


def _runs(root: Path, arms: Sequence[Arm], sets: Sequence[Lot], seeds: int, say: Say) -> list[Json]:
    """Train and measure every arm under every seed; returns a row for each and each held-out set."""
    rows, took = [], list[float]()
    order = [(seed, arm) for seed in range(seeds) for arm in arms]
    for number, (seed, arm) in enumerate(order):
        began = time.monotonic()
        recipe = arm.recipe.model_copy(update={"seed": arm.recipe.seed + seed})
        run = _run_name(recipe, arm.snapshot, sets)
        path = f"{FOLDER}/runs/{run}.json"
        if not (root / path).is_file():
            say(f"training {number + 1} of {len(order)}: {recipe.name}, seed {recipe.seed}")
            publish_json(root, path, _train(root, recipe, arm.snapshot, run, sets, say))
            took.append(time.monotonic() - began)
        measured = read_json(root / path)
        rows += [{"recipe": recipe.name, "seed": seed, "run": run, "dataset": name, **values} for name, values in measured.items()]
        bits = ", ".join(f"{values['bits_per_byte']:.4f} on {name}" for name, values in measured.items())
        left = f"; about {fmean(took) * (len(order) - number - 1) / 60:.1f} min left" if took and number + 1 < len(order) else ""
        say(f"{number + 1} of {len(order)}, {recipe.name} seed {recipe.seed}: bits per byte {bits}{left}")
    return rows


def _run_name(recipe: Recipe, snapshot: Snapshot, sets: Sequence[Lot]) -> str:
    """A name that stands for all that the result depends on, so that a changed recipe is trained anew."""
    content = [entry.content for step in ("tokenizer", "pack", "lots") for entry in snapshot.steps[step]]
    held = [shard.checksum for lot in sets for shard in lot.shards]
    trained = [
        asdict(recipe.model),
        asdict(recipe.training),
        [stage.model_dump(mode="json") for stage in recipe.stages],
        recipe.seed,
        recipe.shuffle_window,
    ]
    return f"{recipe.name[:24]}-{fingerprint(trained, content, held, ROWS)[:8]}"


def _train(root: Path, recipe: Recipe, snapshot: Snapshot, run: str, sets: Sequence[Lot], say: Say) -> dict[str, dict[str, float]]:
    """Train a run's stages, from where it was left, and measure the model."""
    publish_json(root, f"runs/{run}/recipe.json", {"recipe": recipe.model_dump(mode="json"), "sample": 1.0, "snapshot": snapshot.id})
    for position in range(len(recipe.stages)):
        settings = prepare_stage(root, recipe, snapshot, run, position)
        outcome = run_trainer(root, settings, say)
    return _measure(root, settings, outcome.checkpoint, sets)


def _measure(root: Path, settings: StageSettings, checkpoint: str, sets: Sequence[Lot]) -> dict[str, dict[str, float]]:
    """Loss and bits per byte of a checkpoint's model on each held-out set, in FP32 whatever it was trained in."""
    import torch

    from train.checkpoint import load
    from train.data import RowReader
    from train.evaluate import evaluate
    from train.model import Decoder
    from train.parallel import Ranks

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Decoder(settings.model, settings.vocabulary, settings.row_length)
    model.load_state_dict(load(root, checkpoint).tensors("model"))
    height = settings.training.micro_batch_rows
    length = settings.row_length
    reader = RowReader(root, [lot for lot in sets if lot.row_length == length])
    found = evaluate(
        model.to(device), reader, rows_per_source=ROWS, height=height, precision="fp32", ranks=Ranks(0, 1, device), pause=lambda: None
    )
    names = dict.fromkeys(lot.source for lot in reader.lots)
    return {name: {"bits_per_byte": found[f"bits_per_byte/{name}"], "loss": found[f"heldout/{name}"]} for name in names}


def _publish(root: Path, recipes: Sequence[Recipe], arms: Sequence[Arm], tokens: int, rows: Sequence[Json]) -> Json:
    """Publish table, JSON and picture."""
    a, b = (arm.recipe.name for arm in arms)
    vocabulary = arms[0].snapshot.steps["tokenizer"][0].counts["vocabulary"]
    found = {
        "recipes": [a, b],
        "parameters": model_parameters(arms[0].recipe.model, vocabulary, arms[0].recipe.pack.row_length),
        "tokens": tokens,
        "seeds": len({row["seed"] for row in rows}),
        "runs": list(rows),
        "differences": [_difference(rows, recipe.name, a, b) for recipe in recipes],
    }
    table = pa.Table.from_pylist(list(rows), schema=ABLATIONS)
    publish(root, f"{FOLDER}/results.parquet", lambda path: pq.write_table(table, path, compression="zstd"), table.num_rows)
    publish(root, f"{FOLDER}/results.svg", lambda path: _write(path, draw(found)))
    publish_json(root, RESULTS, found)
    return found


def _difference(rows: Sequence[Mapping[str, Json]], dataset: str, a: str, b: str) -> Json:
    bits = {(row["recipe"], row["seed"]): row["bits_per_byte"] for row in rows if row["dataset"] == dataset}
    seeds = sorted({seed for _, seed in bits})
    interval = paired_interval([bits[b, seed] - bits[a, seed] for seed in seeds])
    better = b if interval.mean < 0 else a
    words = f"{better} is better" if interval.shown else "no difference shown"
    means = {"first": fmean(bits[a, seed] for seed in seeds), "second": fmean(bits[b, seed] for seed in seeds)}
    return {"dataset": dataset, **means, **asdict(interval), "words": words}
