"""Generations: what a lake has read, and how new files are added to it without judging anything anew.

A generation is the documents shards that one curation added. Its record, step ``generation``, names the settings it was curated under and
the files that it read, by path and size; times are not recorded, so that a copied folder has the same record. Under ``generations: append``
the entries of earlier generations are taken from the lake's snapshot as they are, whatever has become of their files and of this package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from curate.curation import Curation
from curate.identity import sample_step
from curate.read import READ_VERSION, cut_shards, locate, read_shard, shard_of
from curate.read.files import Located
from curate.step import Shard, ShardWriter, Step
from schemas.errors import InputError, RecipeError
from schemas.manifest import Entry, read_snapshot
from schemas.recipe import Recipe
from schemas.sources import Source
from schemas.store import address_of, publish_json, read_json

Json = Any
FREE: Json = dict.fromkeys(("name", "generations", "model", "training", "stages", "memory_bytes", "alarms"), True) | {"dedup": {"check"}}
"""Fields of a recipe that say nothing about the documents and lots of a generation."""
PLACES = {"path", "paths", "files"}
"""Fields of any section that name places on a machine."""
QUICK = {"jsonl", "parquet", "arrow"}
"""Readers that are not bound to Python for most of their time."""
SMALL_BYTES = 400_000_000
"""Bytes of files up to which their reading in threads ends before processes would (measured: 240 MB/s on two threads, 290 after 1.5 s)."""


def read_generations(c: Curation) -> None:
    """Read all sources or, of a lake that is added to, their new files: steps ``read`` and ``generation``.

    Raises:
        RecipeError: a setting was changed under which an earlier generation was curated.
        InputError: a source has no input, or a file of an earlier generation was changed.
    """
    _find_earlier(c)
    records = [read_json(c.root / entry.files["generation"].path) for entry in c.before("generation")]
    settings = generation_settings(c.recipe, c.sample)
    if records:
        compared = [records[-1]["settings"], settings, generation_settings(c.recipe, c.sample, stated=True)]
        _refuse_changes(*(map(_unjudged, compared) if c.rehearsal else compared))
    known: dict[str, list[Json]] = {}
    for shard in (shard for record in records for shard in record["shards"]):
        known.setdefault(_source(shard["label"]), []).append(shard)
    old, new = [], []
    homes = (f"{os.path.normpath(c.root)}/", f"{address_of(c.root)}/")
    for name, source in c.recipe.sources.items():
        located, more = locate(name, source, none=name in known)  # what was read before may have gone
        if inside := next((place for _, place in located if place.startswith(homes)), None):
            raise InputError(
                "the lake lies among the source's files and would be read itself",
                where=f"sources.{name}.paths: {inside}",
                fix="put the lake elsewhere with --lake, or name the source's files more narrowly",
            )
        sizes = {path: size for shard in known.get(name, []) for path, size, *_ in shard["pieces"]}
        _refuse_changed_sizes(name, located, sizes)
        places = {piece.path: (piece, place) for piece, place in located}
        for shard in known.get(name, []):
            if all(path in places for path, *_ in shard["pieces"]):
                batch = [(places[path][0]._replace(start=a, stop=b, first=n), places[path][1]) for path, _, a, b, n in shard["pieces"]]
                old.append((shard, shard_of(shard["label"], source, more, batch)))
        fresh = [(piece, place) for piece, place in located if piece.path not in sizes]
        new += cut_shards(name, source, fresh, more, c.recipe.shards.bytes, first=len(known.get(name, [])))
    step = Step("read", READ_VERSION, {}, read_shard, processes=_worth_processes(c.recipe.sources.values(), new))
    _check_unchanged([shard for shard, _ in old], c.run(step, [shard for _, shard in old]) if old else [])
    entries = c.run(step, new)
    c.steps["read"] = entries if c.sample == 1 else c.run(*sample_step(c, entries))
    c.steps["read"] = c.before("read") + c.steps["read"]
    record = {"settings": settings, "shards": [_record(shard, entry) for shard, entry in zip(new, entries, strict=True)]}
    c.extend(*_generation_step(len(records), record if new else None))


def _worth_processes(sources: Iterable[Source], shards: Sequence[Shard]) -> bool:
    """Whether reading takes so long that processes, which start in about a second, beat threads, which share Python's lock."""
    files = {(shard.task["source"], path): size for shard in shards for path, size, *_ in shard.task["pieces"]}
    return any(source.reader not in QUICK for source in sources) or sum(files.values()) > SMALL_BYTES


def _find_earlier(c: Curation) -> None:
    if c.recipe.generations == "append" and (c.root / "snapshots/current.json").is_file():
        snapshot = read_snapshot(c.root)
        if "generation" not in snapshot.steps:
            raise RecipeError(
                "the lake's snapshot does not say which files it read",
                where="generations: append",
                fix="curate it once with generations: one",
            )
        c.earlier = snapshot


def _source(label: str) -> str:
    return label.partition("/")[0]


def generation_settings(recipe: Recipe, sample: float, stated: bool = False) -> dict[str, Json]:
    """Everything but files and their places that a generation depends on; by choice only what the recipe states itself."""
    settings: dict[str, Json] = _without_places(recipe.model_dump(mode="json", exclude=FREE, exclude_defaults=stated))
    plain: dict[str, Json] = json.loads(json.dumps(settings | {"sample": sample}))
    return plain


def _unjudged(settings: Json) -> Json:
    """Settings without the rules that stored signals can be judged by anew."""
    early = [rule for rule in settings.get("rules", []) if rule.get("before") is not None]
    sources = {name: source | {"language": source.get("language") is not None} for name, source in settings["sources"].items()}
    return settings | {"rules": early, "sources": sources}


def _without_places(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _without_places(inner) for name, inner in value.items() if name not in PLACES}
    return [_without_places(inner) for inner in value] if isinstance(value, list) else value


def _refuse_changes(old: Json, new: Json, stated: Json) -> None:
    """Refuse changed settings. A new source is none, nor is a field that the record does not know and the recipe does not state.

    Raises:
        RecipeError: names the settings.
    """
    changed = list(_different(old, new, stated, ""))
    if changed:
        raise RecipeError(
            f"{', '.join(changed[:5])} changed since the lake's last generation, whose documents are not judged anew",
            where="generations: append",
            fix="undo the change; or set generations: one, which curates everything again and makes new lots",
        )


def _different(old: Json, new: Json, stated: Json, place: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        more = stated if isinstance(stated, Mapping) and place != "sources" else {}
        for name in {**old, **more}:
            yield from _different(old.get(name), new.get(name), (stated or {}).get(name), f"{place}.{name}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        said = stated if isinstance(stated, list) else [None] * len(new)
        for number, (each, now, told) in enumerate(zip(old, new, said, strict=True)):
            yield from _different(each, now, told, f"{place}.{number}")
    elif old != new:
        yield place


def _refuse_changed_sizes(name: str, located: Sequence[Located], sizes: Mapping[str, int]) -> None:
    for piece, place in located:
        if sizes.get(piece.path, piece.size) != piece.size:
            _changed(f"it had {sizes[piece.path]:,} bytes and has {piece.size:,}", place, name)


def _check_unchanged(shards: Sequence[Json], entries: Sequence[Entry]) -> None:
    """Files that are still there give the documents that they gave (those that were touched are read again to see)."""
    for shard, entry in zip(shards, entries, strict=True):
        if shard["content"] != entry.content:
            paths = ", ".join(sorted({path for path, *_ in shard["pieces"]})[:5])
            _changed("other documents are read from it now", paths, _source(shard["label"]))


def _changed(what: str, place: str, source: str) -> None:
    raise InputError(
        f"a file of an earlier generation was changed: {what}",
        where=f"{place} of source {source!r}",
        fix="put the file back and give new data a file of its own; or set generations: one, which curates everything again",
    )


def _record(shard: Shard, entry: Entry) -> Json:
    pieces = [[path, size, start, stop, first] for path, size, _, start, stop, first in shard.task["pieces"]]
    return {"label": shard.label, "content": entry.content, "pieces": pieces}


def _generation_step(number: int, record: Json) -> tuple[Step, list[Shard]]:
    """The step that publishes a generation's record; without one there is nothing new."""
    new = [] if record is None else [Shard(f"{number:05d}", record, record)]
    return Step("generation", 1, {}, _write_generation), [*([Shard("", None, None)] * number), *new]


def _write_generation(writer: ShardWriter, record: Json) -> Mapping[str, int]:
    writer.files["generation"] = publish_json(writer.root, f"generation/{writer.label}-{writer.key[:12]}.json", record)
    return {"shards": len(record["shards"])}
