"""Which files a source has: folders, globs, their order, their published paths, and what is an error."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil

import pytest

from curate.read import READ_VERSION, list_shards, read_shard
from curate.step import ShardWriter
from schemas.errors import InputError
from schemas.sources import Source


def test_a_missing_file_is_an_error_that_names_source_and_pattern(read, tmp_path):
    for pattern in ("missing.jsonl", "*.jsonl", "missing/**/x"):
        with pytest.raises(InputError) as error:
            read(tmp_path / pattern, name="web")
        assert "sources.web.paths[0]" in str(error.value) and pattern in str(error.value) and "->" in str(error.value)
    (tmp_path / "there").write_text('{"text": "a"}')
    with pytest.raises(InputError, match=r"sources.web.paths\[1\]"):
        read(tmp_path / "there", tmp_path / "missing", name="web")


def test_an_empty_source_is_an_error(read, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no file"):
        read(tmp_path / "empty")
    (tmp_path / "empty" / "f").write_bytes(b"")
    with pytest.raises(InputError, match="all 1 files are empty"):
        read(tmp_path / "empty")
    (tmp_path / "empty" / "f").write_bytes(b"\n\n")
    assert read(tmp_path / "empty").counts["records"] == 0


def test_a_file_that_went_away_is_set_aside(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text('{"text": "x"}')
    (shard,) = list_shards("src", Source(reader="jsonl", paths=[str(tmp_path)]), 1000)
    (tmp_path / "a").unlink()
    counts = read_shard(ShardWriter(tmp_path / "lake", "read", "0" * 32, shard.label), shard.task)
    assert (counts["records"], counts["documents"], counts["broken_files"]) == (1, 1, 1)


def test_published_paths_and_ids_do_not_know_the_machine(read, tmp_path):
    for place in ("one", "two/deeper"):
        (tmp_path / place / "x").mkdir(parents=True)
        (tmp_path / place / "x" / "f.txt").write_text("text")
        (tmp_path / place / "g.txt").write_text("text")
    outcomes = [read(tmp_path / place, reader="text") for place in ("one", "two/deeper")]
    assert outcomes[0].documents == outcomes[1].documents
    assert [row["path"] for row in outcomes[0].documents] == ["g.txt", "x/f.txt"]
    assert outcomes[0].digests == outcomes[1].digests


def test_patterns_share_a_root_so_that_paths_differ(read, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "f").write_text(place)
    outcome = read(tmp_path / "a" / "*", tmp_path / "b" / "f", tmp_path / "a", reader="text")
    assert [row["path"] for row in outcome.documents] == ["a/f", "b/f"]
    assert len({row["doc_id"] for row in outcome.documents}) == 2
    assert [row["path"] for row in read(tmp_path / "a" / ".." / "b", reader="text").documents] == ["f"]


def test_globs_hidden_files_and_links(read, tmp_path):
    root = tmp_path / "in"
    (root / "deep" / "er").mkdir(parents=True)
    (root / ".git").mkdir()
    for name in ("1.txt", "deep/2.txt", "deep/er/3.txt", "deep/4.md", ".hidden", ".git/x.txt"):
        (root / name).write_text(name)
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    assert read(root, reader="text").texts == ["1.txt", "deep/2.txt", "deep/4.md", "deep/er/3.txt"]
    assert read(root / "deep/**/*.txt", reader="text").texts == ["deep/2.txt", "deep/er/3.txt"]
    assert read(root / "*.txt", reader="text").texts == ["1.txt"]
    assert [row["path"] for row in read(root / "d*p/2.txt", reader="text").documents] == ["deep/2.txt"]


def test_a_name_that_is_not_utf8_is_published_with_escapes(read, tmp_path):
    (tmp_path / "in").mkdir()
    try:
        with open(os.path.join(os.fsencode(tmp_path / "in"), b"f\xff"), "w") as file:
            file.write("text")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert [row["path"] for row in read(tmp_path / "in", reader="text").documents] == ["f\\xff"]


def test_ten_thousand_small_files_go_in_batches(read, tmp_path):
    root = tmp_path / "in"
    for folder in range(10):
        (root / str(folder)).mkdir(parents=True)
        for number in range(1000):
            (root / str(folder) / f"{number}.txt").write_text(f"document {folder} {number}")
    few = read(root, reader="text")
    assert few.counts["documents"] == 10_000
    assert len(few.digests) == 1
    many = read(root, reader="text", shard_bytes=10_000)
    assert 10 < len(many.digests) < 40
    assert many.documents == few.documents
    shutil.rmtree(root)


def test_text_files_of_every_kind(read, pack, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    (root / "1").write_bytes(pack("gänzlich\r\n\n".encode()))
    (root / "2").write_bytes(pack(b"\xff\xfe"))
    (root / "3").write_bytes(pack(b""))
    (root / "4").write_bytes(pack(b"x" * 11))
    (root / "5").write_bytes(pack(b"\xef\xbb\xbf" + b"x" * 10))
    outcome = read(root, reader="text", max_document_bytes=10)
    assert outcome.texts == ["", "x" * 10]
    assert [(row["path"], row["record"], row["reason"]) for row in outcome.quarantine] == [
        ("1", 0, "too_large"),
        ("2", 0, "invalid_utf8"),
        ("4", 0, "too_large"),
    ]
    assert read(root, reader="text").texts[0] == "gänzlich\r\n\n"


def test_half_a_text_is_no_document(read, tmp_path):
    (tmp_path / "f").write_bytes(gzip.compress(b"abc" * 1000)[:-9])
    assert read(tmp_path / "f", reader="text").faults == [(0, "truncated_file")]


def test_output_changes_only_with_the_version(read, tmp_path):
    """When this fails, raise READ_VERSION and put the new digest here: lakes read before must not be taken for read anew."""
    (tmp_path / "f.jsonl").write_bytes(
        b'{"text": "a", "url": 1, "z": [1.5, null], "b": "\xc3\xa9"}\n\n{"text": null}\nbad\n{"text": "\xff"}\n[]\n'
    )
    (tmp_path / "g.jsonl").write_bytes(b'{"text": "", "id": 7, "date": "2024", "license": "MIT"}\n')
    plain, named = read(tmp_path / "*.jsonl", max_bad_share=1), read(tmp_path / "g.jsonl", id_field="id")
    rows = [plain.documents, [row | {"detail": ""} for row in plain.quarantine], named.documents]
    assert (READ_VERSION, hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()) == (2, "6f40f3eab2894dad")


def test_a_name_with_the_characters_of_a_glob_is_itself_where_it_is_there(read, tmp_path):
    root = tmp_path / "run [1]"
    root.mkdir()
    for name in ("a.txt", "b[2].txt", "b2.txt"):
        (root / name).write_text(name)
    assert read(root, reader="text").texts == ["a.txt", "b2.txt", "b[2].txt"]
    assert read(root / "*.txt", reader="text").texts == ["a.txt", "b2.txt", "b[2].txt"]
    assert read(root / "b[2].txt", reader="text").texts == ["b[2].txt"]
    assert read(root / "b[2-3].txt", reader="text").texts == ["b2.txt"]
    assert [row["path"] for row in read(root / "?.txt", reader="text").documents] == ["a.txt"]


def test_a_link_that_leads_nowhere_is_a_broken_file(read, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    (root / "a.txt").write_text("text")
    (root / "b.txt").symlink_to(root / "nowhere")
    for pattern in (root, root / "*.txt"):
        outcome = read(pattern, reader="text")
        assert (outcome.texts, outcome.counts["broken_files"]) == (["text"], 1)


def test_a_folder_that_cannot_be_read_is_an_error(read, tmp_path, monkeypatch):
    (tmp_path / "in/closed").mkdir(parents=True)
    (tmp_path / "in/a.txt").write_text("text")
    scan = os.scandir

    def closed(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InputError, match=r"sources.src.paths\[0\]: a folder cannot be read: .*closed"):
        read(tmp_path / "in", reader="text")
