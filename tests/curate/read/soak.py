"""Looks with atheris for bytes that break a reader: led by the lines that they reach, until the time is over.

python -m tests.curate.read.soak SECONDS
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["curate.read"], exclude=["curate.read.lift"]):  # numba compiles no instrumented function
    from tests.curate.read.fuzz import READERS, check, seeds


def one(data: bytes) -> None:
    """The first byte says which reader takes the rest, and whether ids are declared."""
    if data:
        check(READERS[data[0] % len(READERS)], data[1:], by_id=data[0] > 127)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, reader in enumerate(READERS):
            for place, seed in enumerate(seeds(reader)):
                Path(folder, f"{reader}-{place}").write_bytes(bytes([number]) + seed)
        atheris.Setup([sys.argv[0], f"-max_total_time={int(sys.argv[1])}", "-max_len=8192", "-rss_limit_mb=4000", folder], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
