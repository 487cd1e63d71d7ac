"""Fixtures of the pipelines' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.fixture_lake import write_lake


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """See ``fixture_lake``."""
    return write_lake(tmp_path / "lake")
