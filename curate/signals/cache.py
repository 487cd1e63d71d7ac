"""What ties compiled code on disk to its sources.

numba's cache looks only at the file of the function that is called, not at the files of the functions it calls. So only entry points are
cached, and each captures this digest of all kernel sources: numba keys its cache by captured values, and a change anywhere compiles anew.
"""

from __future__ import annotations

import hashlib
from pathlib import Path


def sources_digest() -> int:
    """63 bits of a hash of every source file of this package and of the signals schema."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), here.parent.parent / "schemas" / "signals.py"]
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest(), "big") >> 1
