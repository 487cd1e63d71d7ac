"""Fixtures that tests of several packages share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from schemas import objects, working_copy
from tests import object_store

_NUMBERS = itertools.count()

# The same examples each time, on machines of any speed: a failure is of what was changed. `make soak` looks for other examples.
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("steady", deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOW)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests are allowed most time go first: the process that began one last would end alone."""
    allowed: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        allowed[item.path] = max(allowed.get(item.path, 0), mark.args[0] if mark else 0)
    items.sort(key=lambda item: -allowed[item.path])


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a real S3 store with the bucket ``lakes``."""
    if object_store.WEED is None:
        pytest.skip(object_store.ABSENT)
    with object_store.serving(tmp_path_factory.mktemp("store"), "lakes") as port:
        yield port


@pytest.fixture
def address() -> str:
    """Address of a lake that no other test uses."""
    return f"s3://lakes/t{next(_NUMBERS)}"


@pytest.fixture
def machine(store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """``machine(name)`` makes this process one with that cache of its own, which reaches the store, by choice through a proxy's port."""

    def become(name: str, port: int = store) -> Path:
        for variable, value in object_store.environment(port, tmp_path / name).items():
            monkeypatch.setenv(variable, value)
        objects.client.cache_clear()
        working_copy.open_address.cache_clear()
        return tmp_path / name

    yield become
    objects.client.cache_clear()
    working_copy.open_address.cache_clear()
