"""Documents that hold evaluation text, have no allowed licence or were asked back are dropped, and the verdict says for what."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.contamination import ItemIndex
from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.identity import user_doc_id
from curate.loose import loose_texts
from curate.step import Silent
from schemas.errors import InputError
from schemas.recipe_file import load_recipe
from tests.curate.made_text import document, vocabulary


def words_of(text):
    """Words as the product defines them, for text of letters, digits and spaces."""
    return "".join(c.lower() if c.isalnum() or c == "_" else " " for c in text).split()


def grams(text, size):
    words = words_of(text)
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def brute_force(items, texts, ngram, shortest):
    """First item that each text shares an n-gram with, and how many of the text's places match."""
    found = []
    for text in texts:
        first, places = -1, set()
        for number, item in enumerate(items):
            size = min(ngram, len(words_of(item)))
            if len(words_of(item)) < shortest:
                continue
            wanted = set(grams(item, size))
            here = {(size, at) for at, gram in enumerate(grams(text, size)) if gram in wanted}
            places |= here
            if here and first < 0:
                first = number
        found.append((first, len(places)))
    return found


def overlaps(items, texts, ngram, shortest):
    item, matches = ItemIndex(items, ngram, shortest).overlaps(pa.array(texts, pa.large_string()))
    return list(zip(item.tolist(), matches.tolist(), strict=True))


TEXT = st.lists(st.sampled_from(["a", "B", "c", "dé", "x1", ",", "\n", "The"]), min_size=1, max_size=40).map(" ".join)
SPOKEN = TEXT.filter(lambda text: bool(words_of(text)))


@given(st.lists(SPOKEN, max_size=5), st.lists(SPOKEN, max_size=6), st.integers(2, 6), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_overlap_is_what_brute_force_finds(items, texts, ngram, shortest):
    assert overlaps(items, texts, ngram, shortest) == brute_force(items, texts, ngram, shortest)


def test_thirteen_words_count_and_twelve_do_not_whatever_case_and_punctuation():
    item = " ".join(f"w{n}" for n in range(30))
    inside = "before W3, w4; " + " ".join(f"w{n}" for n in range(5, 16)) + "! after"
    fewer = "before w3 w4 " + " ".join(f"w{n}" for n in range(5, 15)) + " after"
    assert overlaps([item], [inside, fewer, "", item], 13, 3) == [(0, 1), (-1, 0), (-1, 0), (0, 18)]
    short = "What is the capital of Peru?"
    assert overlaps([short], ["x what is the capital of peru y", "what is the capital of", "capital of Peru?"], 13, 3) == [
        (0, 1),
        (-1, 0),
        (-1, 0),
    ]


def test_batches_and_many_items_change_nothing():
    source = random.Random(4)
    words = vocabulary(source, 60)
    items, texts = [document(source, words, 2) for _ in range(40)], [document(source, words, 6) for _ in range(30)]
    texts[7] += " " + items[11]
    texts[9] = items[30][5:] + texts[9]
    whole = overlaps(items, texts, 5, 3)
    assert whole == brute_force(items, texts, 5, 3)
    assert whole == [one for text in texts for one in overlaps(items, [text], 5, 3)]


RECIPE = """\
name: made
sources:
  web: {reader: jsonl, paths: [web.jsonl], id_field: id, licenses: [MIT, cc0-1.0]}
  books: {reader: jsonl, paths: [books.jsonl], id_field: id}
rules:
  - {name: short, sql: n_words < 20}
decontaminate:
  sets:
    quiz: {paths: [quiz.jsonl.gz], fields: [question, choices, deep.text]}
    prose: {paths: [prose.txt]}
opt_out: {domains: [domains.txt], ids: [ids.txt]}
dedup: {near: null}
holdout: {share: 0}
shards: {bytes: 8000}
"""


@pytest.fixture
def project(tmp_path):
    source = random.Random(1)
    words = vocabulary(source)
    texts = [document(source, words) for _ in range(40)]
    quiz = [{"question": "Which river runs through the old town of Bern?", "choices": ["yes", "the slow green Aare that everybody likes"]}]
    quiz += [{"deep": {"text": texts[3][100:400]}}, {"question": 5}]
    (tmp_path / "quiz.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, quiz)).encode()))
    (tmp_path / "prose.txt").write_text(texts[4] + texts[5])
    texts[6] += "\nWhich river runs through the old TOWN of Bern"
    texts[7] = "Short: " + quiz[0]["choices"][1]
    web = [{"id": n, "text": text, "license": "mit"} for n, text in enumerate(texts[:20])]
    web[8] |= {"license": "GPL-3.0"}
    del web[9]["license"]
    books = [{"id": f"b{n}", "text": text, "url": f"https://www.example{n}.org:80/x"} for n, text in enumerate(texts[20:])]
    books[1]["url"] = "http://a.b.Gone.example/page?x=https://fine.org"
    books[2]["url"] = "https://notgone.example/"
    for name, rows in (("web", web), ("books", books)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "domains.txt").write_text("# who asked\ngone.example\n\nother.org\n")
    (tmp_path / "ids.txt").write_text(f"books:b5\n{user_doc_id('web', '10').hex()}\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def run(path, workers=1, **options):
    root = path.parent / "lake"
    snapshot = curate(Curation(root, load_recipe(path), LocalExecutor(workers), Silent(), **options))

    def rows(table):
        return [row for file in snapshot.files(table) for row in pq.read_table(root / file.path, partitioning=None).to_pylist()]

    ids = {row["doc_id"]: f"{row['source']}:{row['id']}" for row in rows("documents")}
    return ids, rows


def test_every_exclusion_is_a_reason_with_what_it_is_for(project):
    ids, rows = run(project)
    found = {(ids[row["doc_id"]], row["reason"], row["detail"]) for row in rows("exclusions")}
    assert found == {
        ("web:3", "contaminated_quiz", "quiz.jsonl.gz, record 1, deep.text"),
        ("web:4", "contaminated_prose", "prose.txt, record 0"),
        ("web:5", "contaminated_prose", "prose.txt, record 0"),
        ("web:6", "contaminated_quiz", "quiz.jsonl.gz, record 0, question"),
        ("web:7", "contaminated_quiz", "quiz.jsonl.gz, record 0, choices"),
        ("web:8", "license_not_allowed", "GPL-3.0"),
        ("web:9", "license_not_allowed", "none stated"),
        ("web:10", "opted_out", "id"),
        ("books:b1", "opted_out", "domain gone.example"),
        ("books:b5", "opted_out", "id"),
    }
    verdicts = {ids[row["doc_id"]]: row for row in rows("verdicts")}
    dropped = {name: row["reason"] for name, row in verdicts.items() if row["state"] == "dropped"}
    assert dropped == {name: reason for name, reason, _ in found}
    assert [failure["rule"] for failure in verdicts["web:7"]["failures"]] == ["contaminated_quiz", "short"]
    assert verdicts["web:6"]["failures"][0] == {"rule": "contaminated_quiz", "value": 1.0, "threshold": None}


def test_who_asked_is_known_by_host_in_whatever_form_the_address_is(project):
    asked = [
        "gone.example/page",
        "//gone.example",
        "  https://GONE.example.:8080/",
        "user@gone.example/x",
        "http://xn--mnchen-3ya.de/",
        "münchen.de",
    ]
    others = ["notgone.example", "https://fine.org/?u=gone.example", "mailto:someone", "gone.example.org/", "/gone.example"]
    (project.parent / "domains.txt").write_text("gone.example\nMünchen.de\n")
    rows = [{"id": n, "text": f"text number {n}", "url": url} for n, url in enumerate([*asked, *others])]
    (project.parent / "books.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ids, rows_of = run(project)
    found = {ids[row["doc_id"]] for row in rows_of("exclusions") if row["detail"].startswith("domain")}
    assert found == {f"books:{n}" for n in range(len(asked))}


def test_a_changed_list_scans_no_text_again_and_batches_change_nothing(project):
    class Counting(LocalExecutor):
        ran = set()

        def run(self, function, tasks, processes):
            self.ran |= {step.name for _, step, *_ in tasks}
            return super().run(function, tasks, processes)

    _, rows = run(project, batch_rows=3)
    before = rows("exclusions")
    executor = Counting(1)
    curate(Curation(project.parent / "lake", load_recipe(project), executor, Silent()))
    assert executor.ran == set()
    (project.parent / "domains.txt").write_text("other.org\n")
    curate(Curation(project.parent / "lake", load_recipe(project), executor, Silent()))
    assert {"permit", "rules"} <= executor.ran and not executor.ran & {"read", "signals", "decontaminate"}
    (project.parent / "domains.txt").write_text("gone.example\n")
    _, rows = run(project)
    assert rows("exclusions") == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("prose.txt", "none.txt"), "decontaminate.sets.prose.paths: 'none.txt' does not exist|none.txt' does not exist"),
        (("[question, choices, deep.text]", "[querstion]"), "no record holds text in querstion"),
        (("domains.txt", "nowhere.txt"), "opt_out.domains: .*does not exist"),
    ],
)
def test_what_cannot_be_read_is_said(project, change, words):
    project.write_text(RECIPE.replace(*change))
    with pytest.raises(InputError, match=words):
        run(project)


def test_damaged_lists_are_said_with_their_place(project):
    (project.parent / "ids.txt").write_text("what\n")
    with pytest.raises(InputError, match="'what' is neither a doc_id"):
        run(project)
    (project.parent / "ids.txt").write_text("")
    (project.parent / "quiz.jsonl.gz").write_bytes(gzip.compress(b'{"question": "a b c d"}\n{broken'))
    with pytest.raises(InputError, match="line 2 is no JSON"):
        run(project)


@pytest.mark.parametrize("place", ["s3://bucket/items.jsonl", "hf://datasets/corp/items"])
def test_items_elsewhere_are_refused(place):
    with pytest.raises(InputError, match="is not on this machine"):
        next(loose_texts([place], ["q"], "here"))


def test_items_are_those_of_lines_or_of_one_array_and_an_empty_file_has_none(tmp_path):
    def found(content):
        (tmp_path / "items").write_text(content)
        return [(each.record, each.field, each.text) for each in loose_texts([str(tmp_path / "items")], ["q"], "here")]

    objects = [{"q": "one"}, {"a": 1}, {"q": ["two", "three"]}]
    wanted = [(0, "q", "one"), (2, "q", "two"), (2, "q", "three")]
    assert found("\n".join(map(json.dumps, objects))) == found(json.dumps(objects, indent=1)) == wanted
    assert found('["one", {"q": "two"}]') == [(0, "", "one"), (1, "q", "two")]
    for text in ("[Illustration] A page.", "[1, 2]", "Prose."):
        assert found(text) == [(0, "", text)]
    for empty in ("", "[]"):
        with pytest.raises(InputError, match="no record holds text in q"):
            found(empty)
