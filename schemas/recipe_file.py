"""Reads recipe files: YAML with ``extends``, changed by ``--set a.b=c``; errors name file, line and field."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, ValidationError

from schemas.errors import RecipeError, nearest
from schemas.hf_config import numbers_of
from schemas.recipe import Recipe, merge
from schemas.store import read_json

Json = Any
Places = dict[str, str]
"""File and line of each dotted field, or the option that it comes from."""
MOST_FIELDS = 100_000
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's types of mistakes whose field there is not."""
_SCALARS = ("int", "constrained-int", "float", "str", "literal['rest']")
_BOOL, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"


def load_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: the YAML file; ``extends: other.yaml`` merges it over another (mappings merge, everything else is replaced).
        changes: ``dotted.field=value`` settings, the value in YAML; list items by number, paths relative to the current folder.

    Raises:
        RecipeError: not readable, not YAML, or not a recipe.
    """
    merged, places = _merged(path, ())
    for change in changes:
        changed = _set(merged, change)
        places = {name: place for name, place in places.items() if not f"{name}.".startswith(f"{changed}.")} | {changed: "--set"}
    _absolute_paths(merged, Path.cwd())  # those of changes; a file's are absolute by now
    if isinstance(merged.get("start_from"), str) and isinstance(merged.get("model", {}), dict):
        merged["model"] = _started(merged.get("model", {}), Path(merged["start_from"]) / "config.json")
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        raise RecipeError(
            _explain(error, str(path), places), fix="`gristmill schema recipe.schema.json` writes what every field means"
        ) from error
    _refuse_without_effect(recipe, str(path), places)
    for position, stage in enumerate(recipe.stages):
        recipe.training_of(stage, f"{path}: stages[{position}] ({stage.name}).training")
    return recipe


def _refuse_without_effect(recipe: Recipe, path: str, places: Places) -> None:
    """Refuse fields that someone wrote and nothing reads. Here and not in the models: a stored recipe has every field written out."""
    kind = recipe.tokenizer.kind
    dead = [("tokenizer", name, f"only kind bpe is trained, and this one is of kind {kind}") for name in ("vocabulary", "sample_bytes")]
    dead = [] if kind == "bpe" else dead
    if not any(source.difficulty for source in recipe.sources.values()):
        dead.append(("pack", "bins", "no source declares a difficulty to cut into bins"))
    for section, name, reason in dead:
        if name in getattr(recipe, section).model_fields_set:
            place = places.get(f"{section}.{name}", path)
            raise RecipeError(f"it would be without effect: {reason}", where=f"{place}: {section}.{name}", fix="leave it out")


def json_schema() -> dict[str, Json]:
    """JSON Schema of a recipe, for editors; dataclass fields get their description from their docstrings."""
    schema = Recipe.model_json_schema()
    for definition in schema["$defs"].values():
        described = dict(re.findall(r"^    (\w+): (.+(?:\n {6,}.+)*)", definition.get("description", ""), re.MULTILINE))
        for name, field in definition.get("properties", {}).items():
            if name in described:
                field.setdefault("description", " ".join(described[name].split()))
    schema["properties"]["extends"] = {"type": "string", "description": "Recipe that this one is merged over."}
    return schema


def _started(model: dict[str, Json], config: Path) -> dict[str, Json]:
    """The model section with the sizes of the model that it starts from."""
    if not config.is_file():
        raise RecipeError("there is no config.json", where=f"start_from: {config.parent}", fix="name a folder of a Hugging Face model")
    numbers = numbers_of(read_json(config), str(config))
    for name, value in numbers.items():
        if name in model and model[name] != value:
            raise RecipeError(f"{name} is {model[name]}, the model to start from has {value}", where=f"model.{name}", fix="leave it out")
    return {**numbers, **model}


class _Loader(yaml.SafeLoader):
    """YAML whose only truth values are true and false (else a rule's ``off`` is false), and which refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As its parent does, after looking for a key that would be lost."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is there twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
# YAML 1.1 takes 1e-3 and 1e9 for text.
_Loader.add_implicit_resolver(_FLOAT, re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789"))


def _merged(path: Path, seen: tuple[Path, ...]) -> tuple[dict[str, Json], Places]:
    """A file's mapping merged over what it extends, and the places of its fields."""
    path = path.resolve()
    if path in seen:
        raise RecipeError("extends itself", where=str(path))
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        places: Places = {}
        _find_places(root, "", path, places)
        value = yaml.load(text, Loader=_Loader)
    except FileNotFoundError as error:
        raise RecipeError("no such recipe", where=str(path), fix="check the path; `ls recipes` shows the ready ones") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", where=str(path)) from error
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {error}", where=str(path)) from error
    except RecursionError:
        raise RecipeError("nested too deeply, or within itself", where=str(path), fix="write it out flatter") from None
    if not isinstance(value, dict):
        raise RecipeError("a recipe is a mapping of fields", where=str(path))
    _absolute_paths(value, path.parent)
    base_name = value.pop("extends", None)
    if base_name is None:
        return value, places
    base, base_places = _merged(path.parent / str(base_name), (*seen, path))
    return merge(base, value), base_places | places


def _find_places(node: yaml.Node | None, dotted: str, path: Path, places: Places) -> None:
    """Note where each field of a file stands; aliases are followed, so that a few lines can stand for any number of fields.

    Raises:
        RecipeError: there are too many.
    """
    if node is None:
        return
    if len(places) > MOST_FIELDS:
        raise RecipeError(f"more than {MOST_FIELDS:,} fields", where=str(path), fix="name files by folders and globs; use fewer aliases")
    places.setdefault(dotted, f"{path}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            inner = f"{dotted}.{key.value}".lstrip(".")
            places[inner] = f"{path}:{key.start_mark.line + 1}"
            _find_places(child, inner, path, places)
    elif isinstance(node, yaml.SequenceNode):
        for number, child in enumerate(node.value):
            _find_places(child, f"{dotted}.{number}".lstrip("."), path, places)


def _absolute_paths(value: dict[str, Json], folder: Path) -> None:
    """Paths in a recipe are relative to its own folder, so that a recipe can be extended from elsewhere."""
    sources = value.get("sources")
    for source in sources.values() if isinstance(sources, dict) else []:
        _absolute_lists(source, ("paths",), folder)
    signals = value.get("signals")
    for signal in signals.values() if isinstance(signals, dict) else []:
        for kind, path in signal.items() if isinstance(signal, dict) else []:
            if kind in ("classifier", "losses") or (kind == "python" and str(path).partition(":")[0].endswith(".py")):
                signal[kind] = _placed(folder, str(path))
            elif kind in ("transformer", "fasttext") and isinstance(path, dict) and isinstance(path.get("path"), str):
                path["path"] = _placed(folder, path["path"])
    decontaminate = value.get("decontaminate")
    sets = decontaminate.get("sets") if isinstance(decontaminate, dict) else None
    for each in sets.values() if isinstance(sets, dict) else []:
        _absolute_lists(each, ("paths",), folder)
    edits = value.get("edits")
    for edit in edits if isinstance(edits, list) else []:
        _absolute_lists(edit, ("bad_words",), folder)
    _absolute_lists(value.get("opt_out"), ("domains", "ids"), folder)
    _absolute_lists(value.get("block"), ("domains", "urls", "words"), folder)
    choices = value.get("choices")
    for one in choices.values() if isinstance(choices, dict) else []:
        if isinstance(one, dict) and isinstance(one.get("path"), str):
            one["path"] = _placed(folder, one["path"])
    if isinstance(value.get("start_from"), str):
        value["start_from"] = _placed(folder, value["start_from"])
    tokenizer = value.get("tokenizer")
    if isinstance(tokenizer, dict) and isinstance(tokenizer.get("path"), str):
        tokenizer["path"] = _placed(folder, tokenizer["path"])


def _placed(folder: Path, path: str) -> str:
    """A path of a recipe as an absolute one; ~ is the user's own folder."""
    return str(folder / os.path.expanduser(path))  # noqa: PTH111  # Path's own raises where there is no such user


def _absolute_lists(section: Json, fields: Sequence[str], folder: Path) -> None:
    """Make the paths in lists of a section absolute."""
    for field in fields if isinstance(section, dict) else ():
        if isinstance(section.get(field), list):
            section[field] = [_placed(folder, p) if isinstance(p, str) and "://" not in p else p for p in section[field]]


def _set(recipe: dict[str, Json], change: str) -> str:
    """Make a change, and return the dotted field that it is of."""
    dotted, equals, text = change.partition("=")
    if not equals or not dotted:
        raise RecipeError(f"{change!r} is not of the form field.name=value", where="--set")
    *parents, last = dotted.split(".")
    place: Json = recipe
    try:
        for name in parents:
            if isinstance(place, dict) and place.get(name) is None:  # absent, or switched off by null
                place[name] = {}
            place = place[int(name) if isinstance(place, list) else name]
        place[int(last) if isinstance(place, list) else last] = yaml.load(text, Loader=_Loader)
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"no such field {dotted!r}", where="--set", fix="list items go by number, from 0: stages.0.tokens=1000"
        ) from error
    except yaml.YAMLError as error:
        raise RecipeError(f"the value {text!r} is not YAML", where=f"--set {dotted}") from error
    return dotted


def _explain(error: ValidationError, path: str, places: Places) -> str:
    """One line per mistake: file and line, field, what is wrong."""
    found = []
    for item in _of_nearest_types(error):
        tags = _type_tags(item)
        tagged = [str(part) for n, part in enumerate(item["loc"]) if n not in tags]
        names, _ = _fields_at(Recipe, tagged)
        dotted = ".".join(names)
        place = next((places[key] for n in range(len(names), -1, -1) if (key := ".".join(names[:n])) in places), path)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] in _UNKNOWN:
            message = f"unknown field{nearest(names[-1], _fields_at(Recipe, tagged[:-1])[1])}"
        elif item["type"] not in ("missing", "value_error"):
            message += f", not {json.dumps(item['input'], default=str)[:80]}"
        found.append(f"{place}: {dotted or 'recipe'}: {message}")
    return "\n".join(found)


def _of_nearest_types(error: ValidationError) -> list[Json]:
    """All mistakes; where a value may be a section of one kind or another, those of the kind with the fewest."""
    items = error.errors()
    kinds = [[(item["loc"][:n], item["loc"][n]) for n in _type_tags(item)] for item in items]
    counts = Counter(kind for found in kinds for kind in found)
    least = {place: min(n for (other, _), n in counts.items() if other == place) for place, _ in counts}
    return [item for item, found in zip(items, kinds, strict=True) if all(counts[kind] == least[kind[0]] for kind in found)]


def _type_tags(item: Json) -> list[int]:
    """Where pydantic puts the tried types of unions into a mistake's location; an unknown field, whatever it is called, is none."""
    names = item["loc"][: -1 if item["type"] in _UNKNOWN else None]
    return [n for n, part in enumerate(map(str, names)) if "[" in part or part in _SCALARS or part in _section_names()]


@cache
def _section_names() -> frozenset[str]:
    """Names of the classes of all sections of a recipe."""
    found: set[type] = set()
    left: list[Any] = [Recipe]
    while left:
        kind = left.pop()
        if (fields := _fields(kind)) and kind not in found:
            found.add(kind)
            left += fields.values()
        left += get_args(kind)
    return frozenset(kind.__name__ for kind in found)


def _fields_at(model: Any, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """A place in the recipe without the tags of tagged sections that pydantic puts there, and the fields allowed at it."""
    place = []
    for name in names:
        if (tagged := _tagged(model, name)) is not None:
            model = tagged
            continue
        place.append(name)
        model = _inner(model)
        fields = _fields(model)
        model = fields[name] if name in fields else get_args(model)[-1] if get_args(model) else None
    return place, list(_fields(_inner(model)))


def _tagged(kind: Any, tag: str) -> Any:
    """Of the sections that a field may hold, each told by a tag, the one with this tag; None where it names none."""
    sections = get_args(next(iter(get_args(kind)), None))
    return next((section for section in sections if any(tag in get_args(field) for field in _fields(section).values())), None)


def _inner(kind: Any) -> Any:
    """The section, mapping or list inside Annotated and optional types."""
    while kind is not None and not _fields(kind) and get_origin(kind) not in (dict, list) and get_args(kind):
        kind = next((a for a in get_args(kind) if _fields(_inner(a)) or get_origin(a) in (dict, list)), None)
    return kind


def _fields(kind: Any) -> dict[str, Any]:
    """Field types of a recipe section, pydantic model or dataclass."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return get_type_hints(kind) if dataclasses.is_dataclass(kind) and isinstance(kind, type) else {}
