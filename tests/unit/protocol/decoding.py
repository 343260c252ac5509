"""The cutting test: whatever the pieces, a reader finds the same values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def assert_decodes(new_reader: Callable[[], Any], raw: bytes, values: Sequence[Any]) -> None:
    """`raw` gives `values`: whole, byte by byte, in every two pieces, in pieces of 2 … 9 bytes, with more behind it."""
    values = list(values)
    assert values, "nothing to compare"
    assert new_reader().receive(raw) == values
    for size in range(1, 10):
        assert in_pieces(new_reader(), [raw[at : at + size] for at in range(0, len(raw), size)]) == values
    for cut in range(len(raw) + 1):
        assert in_pieces(new_reader(), [raw[:cut], raw[cut:]]) == values
    assert new_reader().receive(raw + raw) == values + values


def in_pieces(reader: Any, pieces: Sequence[bytes]) -> list[Any]:
    return [value for piece in pieces for value in reader.receive(piece)]
