"""The signals schema is a contract: integers only, every column documented, every family complete."""

from __future__ import annotations

import pyarrow as pa

from schemas.signals import SIGNAL_FAMILIES, SIGNALS, SIGNALS_VERSION


def test_columns_are_integers_without_nulls_and_say_what_they_count() -> None:
    for field in SIGNALS:
        assert pa.types.is_integer(field.type) and not field.nullable, field.name
        assert len(field.metadata[b"doc"]) > 8, field.name


def test_every_column_is_in_one_family() -> None:
    listed = [name for columns in SIGNAL_FAMILIES.values() for name in columns]
    assert listed == SIGNALS.names
    assert SIGNALS_VERSION >= 1
