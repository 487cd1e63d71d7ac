"""Text that comes with Python: the language reference, the standard library, and what installed packages bring; nothing is run."""

from __future__ import annotations

import ast
import email.parser
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from curate.read.files import Located, published, walk
from curate.read.intake import Intake, Record
from curate.read.piece import Piece
from curate.read.text import take_text

MIN_DOCSTRING = 200
"""Shorter docstrings are passed over, in characters."""
MIN_CATALOGUES = 100
"""With fewer .po files than this, stubs (.pyi) are taken as well."""
PASSED_OVER = frozenset({"__pycache__", "site-packages", "dist-packages"})
TESTS = frozenset({"test", "tests", "testing", "idle_test"})
LICENCE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)


def find_python(parts: Iterable[str]) -> list[Located]:
    """Files of each part in the order of the parts, then of their paths.

    A published path is ``part/path``, the path being under the standard library's folder or under site-packages.
    """
    library = sysconfig.get_path("stdlib")
    packages = list(dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")))
    trees: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    located = []
    for part in parts:
        folders, wanted = ([library], _FILES[part]) if part in ("topics", "docstrings", "source") else (packages, _FILES[part])
        if part == "po":
            folders = [library, *packages]
        files = trees.setdefault(tuple(folders), _tree(folders))
        chosen = [(path, place) for path, place in files if wanted(path)]
        if part == "po" and len(chosen) < MIN_CATALOGUES:
            chosen = [(path, place) for path, place in files if path.endswith((".po", ".pyi"))]
        for path, place in chosen:
            status = Path(place).stat()
            located.append((Piece(f"{part}/{published(path)}", status.st_size, status.st_mtime_ns), place))
    return located


def _tree(folders: Iterable[str]) -> list[tuple[str, str]]:
    """Sorted (path under its folder, place) of all files; the first folder that has a path wins."""
    found: dict[str, str] = {}
    for folder in folders:
        for place in walk(folder, PASSED_OVER):
            found.setdefault(os.path.relpath(place, folder).replace(os.sep, "/"), place)
    return sorted(found.items())


def _is_code(path: str) -> bool:
    return path.endswith(".py") and not TESTS.intersection(path.split("/")[:-1])


def _in_distribution(path: str) -> bool:
    return path.partition("/")[0].endswith((".dist-info", ".egg-info"))


def _is_licence(path: str) -> bool:
    folder, name = os.path.split(path)
    return _in_distribution(path) and (bool(LICENCE.match(name)) or "/licenses" in folder)


def _is_docs(path: str) -> bool:
    return path.endswith((".rst", ".md", ".txt")) and not _in_distribution(path)


_FILES: dict[str, Callable[[str], bool]] = {
    "topics": lambda path: path == "pydoc_data/topics.py",
    "docstrings": _is_code,
    "source": _is_code,
    "package_source": _is_code,
    "package_docstrings": _is_code,
    "metadata": lambda path: path.endswith(".dist-info/METADATA") and path.count("/") == 1,
    "licences": _is_licence,
    "docs": _is_docs,
    "po": lambda path: path.endswith(".po"),
}


def interpreter() -> list[int]:
    """What, beside the files, decides how Python source is understood."""
    return list(sys.version_info[:2])


def read_python(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take a file's documents: itself, or the topics, docstrings or description in it."""
    part = piece.path.partition("/")[0]
    if part in _SEVERAL:
        intake.input_bytes += piece.size
        try:
            documents = _SEVERAL[part](file.read().decode())
        except UnicodeDecodeError as error:
            intake.refuse_file("invalid_utf8", f"{error.reason} at byte {error.start}", piece.size)
            return
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            intake.refuse_file("broken_source", f"not Python that this interpreter parses: {error}", piece.size)
            return
        except OSError as error:
            intake.refuse_file("unreadable_file", f"the system cannot read it: {error.strerror}", piece.size)
            return
        for number, record in enumerate(documents):
            intake.records += 1
            try:
                size = len(record["text"].encode())
            except UnicodeEncodeError:
                intake.refuse(number, "invalid_utf8", "half a surrogate pair", len(record["text"]))
            else:
                intake.take(record | {"part": part}, number, size)
    else:
        intake.records += 1
        take_text(intake, piece, file, part=part)
    yield


def _topics(source: str) -> list[Record]:
    """The reference's topics, by literal evaluation of the one dictionary in the file."""
    for statement in _parse(source).body:
        if isinstance(statement, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "topics" for name in statement.targets):
            return [{"text": text, "name": name} for name, text in ast.literal_eval(statement.value).items()]
    raise ValueError("no assignment to 'topics'")


def _docstrings(source: str) -> list[Record]:
    """Docstrings of the module and of its classes and functions, in the order in which they stand."""
    module = _parse(source)
    found: list[Record] = []
    open_nodes: list[tuple[ast.AST, str]] = [(module, "")]
    while open_nodes:
        node, name = open_nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(node, ast.Module):
                name = f"{name}.{node.name}".lstrip(".")
            text = ast.get_docstring(node)
            if text is not None and len(text) >= MIN_DOCSTRING:
                found.append({"text": text, "name": name})
        open_nodes += [(child, name) for child in reversed(_statements(node))]
    return found


def _statements(node: ast.AST) -> list[ast.AST]:
    """Statements and handlers directly inside a statement: definitions lie nowhere else."""
    return [child for field in ("body", "handlers", "orelse", "finalbody", "cases") for child in getattr(node, field, ()) if _opens(child)]


def _opens(node: ast.AST) -> bool:
    return hasattr(node, "body") or hasattr(node, "cases")


def _description(text: str) -> list[Record]:
    """The description of a distribution with its name and version; nothing when it has none."""
    message = email.parser.Parser().parsestr(text)
    body = message.get_payload()
    description = body if isinstance(body, str) and body.strip() else message.get("Description", "")
    if not description.strip() or description.strip() == "UNKNOWN":
        return []
    licence = message.get("License-Expression") or message.get("License")
    fields = {"name": message.get("Name"), "version": message.get("Version"), "url": message.get("Home-page")}
    if licence and "\n" not in licence:
        fields["license"] = licence
    return [{"text": description} | {name: str(value) for name, value in fields.items() if value}]


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


_SEVERAL: dict[str, Callable[[str], list[Record]]] = {
    "topics": _topics,
    "docstrings": _docstrings,
    "package_docstrings": _docstrings,
    "metadata": _description,
}
