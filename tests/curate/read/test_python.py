"""The python source: what it gathers, from files alone, never running any."""

from __future__ import annotations

import json
import pydoc_data.topics
import sysconfig
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from curate.read import list_shards, read_shard
from curate.step import ShardWriter
from schemas.sources import Source

LONG = "A docstring that is long enough to be a document. " * 5


def gather(lake: Path, *parts: str, shard_bytes: int = 32_000_000, **more):
    """Documents, quarantine and records of the parts."""
    documents, quarantine, records = [], [], 0
    for shard in list_shards("py", Source(reader="python", parts=list(parts), **more), shard_bytes):
        writer = ShardWriter(lake, "read", "0" * 32, shard.label)
        counts = read_shard(writer, shard.task)
        records += counts["records"]
        for name, rows in (("documents", documents), ("quarantine", quarantine)):
            if name in writer.files:
                rows += pq.read_table(lake / writer.files[name].path, partitioning=None).to_pylist()
    assert records == len(documents) + sum(row["record"] is not None for row in quarantine)
    return documents, quarantine


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A Python of our own: library and site-packages made of the files that a test writes."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / ("lib" if name == "stdlib" else "lib/site-packages")))

    def write(path: str, content: str | bytes) -> None:
        place = tmp_path / "lib" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def test_topics_are_those_of_this_python(tmp_path):
    documents, _ = gather(tmp_path, "topics")
    assert {json.loads(row["meta"])["name"]: row["text"] for row in documents} == pydoc_data.topics.topics
    assert {row["path"] for row in documents} == {"topics/pydoc_data/topics.py"}
    assert [row["record"] for row in documents] == list(range(len(documents)))


def test_docstrings_lie_wherever_definitions_lie(site, tmp_path):
    source = f'''"""Module. {LONG}"""
raise SystemExit("nobody runs this")
class A(B):
    """Class. {LONG}"""
    def short(self): "short"
    async def method(self):
        """Method. {LONG}"""
        def inner():
            """Inner. {LONG}"""
if x:
    pass
else:
    try:
        pass
    except E:
        def handler():
            """Handler. {LONG}"""
match x:
    case 1:
        def case():
            """Case. {LONG}"""
def assigned():
    x = """Not a docstring. {LONG}"""
'''
    site("m.py", source)
    site("test/t.py", source)
    site("site-packages/p.py", source)
    documents, quarantine = gather(tmp_path / "lake", "docstrings")
    assert [(row["text"].split(".")[0], json.loads(row["meta"])) for row in documents] == [
        ("Module", {"name": "", "part": "docstrings"}),
        ("Class", {"name": "A", "part": "docstrings"}),
        ("Method", {"name": "A.method", "part": "docstrings"}),
        ("Inner", {"name": "A.method.inner", "part": "docstrings"}),
        ("Handler", {"name": "handler", "part": "docstrings"}),
        ("Case", {"name": "case", "part": "docstrings"}),
    ]
    assert not quarantine
    assert len(gather(tmp_path / "lake", "package_docstrings")[0]) == 6


def test_each_part_takes_its_own_files(site, tmp_path):
    for path in (
        "os.py", "test/x.py", "idlelib/idle_test/y.py", "__pycache__/z.py", "site-packages/p/__init__.py", "site-packages/p/tests/t.py",
        "site-packages/p/README.md", "site-packages/p/docs/x.rst", "site-packages/p/stub.pyi", "site-packages/p/de.po",
        "site-packages/p-1.dist-info/LICENSE", "site-packages/p-1.dist-info/licenses/AUTHORS", "site-packages/p-1.dist-info/RECORD",
        "site-packages/p-1.dist-info/top_level.txt", "site-packages/p-1.dist-info/COPYING.txt",
    ):  # fmt: skip
        site(path, path)
    expected = {
        "source": ["os.py"],
        "package_source": ["p/__init__.py"],
        "licences": ["p-1.dist-info/COPYING.txt", "p-1.dist-info/LICENSE", "p-1.dist-info/licenses/AUTHORS"],
        "docs": ["p/README.md", "p/docs/x.rst"],
        "po": ["p/de.po", "p/stub.pyi"],
    }
    for part, paths in expected.items():
        assert [row["path"] for row in gather(tmp_path / "lake", part)[0]] == [f"{part}/{path}" for path in paths]
    documents, _ = gather(tmp_path / "lake", *expected)
    assert [row["path"] for row in documents] == [f"{part}/{path}" for part, paths in expected.items() for path in paths]
    assert len({row["doc_id"] for row in documents}) == len(documents)
    assert str(tmp_path) not in str([row | {"text": ""} for row in documents])


def test_descriptions_of_distributions(site, tmp_path):
    site(
        "site-packages/a-1.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: a\nVersion: 1\nLicense: MIT\nHome-page: h\n\n# Read me\n\nText: ä\n",
    )
    site("site-packages/b-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: b\nVersion: 1\n")
    site("site-packages/c-1.dist-info/METADATA", b"Name: c\n\n\xff\n")
    documents, quarantine = gather(tmp_path / "lake", "metadata")
    assert [(row["text"], row["license"], row["url"], row["meta"]) for row in documents] == [
        ("# Read me\n\nText: ä\n", "MIT", "h", '{"name":"a","part":"metadata","version":"1"}')
    ]
    assert [(row["path"], row["record"], row["reason"]) for row in quarantine] == [
        ("metadata/c-1.dist-info/METADATA", None, "invalid_utf8")
    ]


def test_what_cannot_be_parsed_or_decoded_is_set_aside(site, tmp_path):
    site("a.py", "def f(:\n")
    site("b.py", b"# \xff\n")
    site("c.py", "(" * 5000)
    site("d.py", b"x = '\0'\n")
    site("e.py", f"'''{LONG}'''\nx = '\\d'\n")
    site("f.py", f"'''half \\ud800 {LONG}'''\n")
    documents, quarantine = gather(tmp_path / "lake", "docstrings", "source")
    assert [row["path"] for row in documents][:1] == ["docstrings/e.py"]
    faults = [(row["path"], row["record"], row["reason"]) for row in quarantine]
    assert faults == [
        ("docstrings/a.py", None, "broken_source"),
        ("docstrings/b.py", None, "invalid_utf8"),
        ("docstrings/c.py", None, "broken_source"),
        ("docstrings/d.py", None, "broken_source"),
        ("docstrings/f.py", 0, "invalid_utf8"),
        ("source/b.py", 0, "invalid_utf8"),
    ]


def test_any_cut_gives_the_same_documents(tmp_path):
    parts = ("topics", "metadata", "licences")
    assert gather(tmp_path / "1", *parts, shard_bytes=50_000) == gather(tmp_path / "2", *parts)


def test_the_library_of_this_python(tmp_path):
    documents, quarantine = gather(tmp_path, "source")
    assert len(documents) > 400 and sum(row["bytes"] for row in documents) > 5_000_000
    paths = [row["path"] for row in documents]
    assert paths == sorted(paths) and "source/json/decoder.py" in paths
    assert not any("/test/" in path or "site-packages" in path for path in paths)
    assert len(quarantine) < 5
