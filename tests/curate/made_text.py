"""Makes English-like text with planted duplicates, and measures similarity by brute force, independently of the product."""

import json
import random
import re

COMMON = [
    "the",
    "be",
    "to",
    "of",
    "and",
    "that",
    "have",
    "with",
    "this",
    "for",
    "not",
    "are",
    "from",
    "they",
    "which",
    "one",
    "all",
    "what",
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vocabulary(random_source, size=800):
    return ["".join(random_source.choices(LETTERS, k=random_source.randint(3, 9))) for _ in range(size)]


def document(random_source, words, sentences=12):
    lines = []
    for _ in range(sentences):
        chosen = [random_source.choice(COMMON if random_source.random() < 0.4 else words) for _ in range(random_source.randint(7, 14))]
        lines.append(" ".join(chosen).capitalize() + ".")
    return "\n".join(lines)


def altered(random_source, text, words, share):
    return " ".join(random_source.choice(words) if random_source.random() < share else word for word in text.split(" "))


def corpus(seed, count):
    """Documents, of which about a fifth are exact copies or copies altered by 1 to 15 %."""
    source = random.Random(seed)
    words = vocabulary(source)
    texts = []
    for _ in range(count):
        fate = source.random()
        if texts and fate < 0.05:
            texts.append(source.choice(texts))
        elif texts and fate < 0.2:
            texts.append(altered(source, source.choice(texts), words, source.uniform(0.002, 0.06)))
        else:
            texts.append(document(source, words))
    return texts


def write_jsonl(path, texts, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"text": text, **{name: value[number] for name, value in fields.items()}}) + "\n")


def shingles(text, size=5):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)} or {tuple(words)}


def jaccard(a, b):
    return len(a & b) / len(a | b)
