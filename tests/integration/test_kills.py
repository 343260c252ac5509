"""A short run of each scenario of `python -m tests.kills`; `make proof` does them for as long as one says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kills.campaign import Campaign, Result


def kept(name: str, seed: int, directory: Path, **options: object) -> Result:
    """A run without problems. What is printed else has the command that repeats it."""
    campaign = Campaign([name], directory, options)
    campaign.run(seed, None, 1)
    assert campaign.failed == []
    return campaign.results[0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "seed", "options", "least"),
    [
        (
            "retries",
            7,
            {"kills": 5, "redrive_kills": 4},
            {"broker kills": 5, "producer kills": 5, "consumer kills": 5, "acknowledged": 50, "dead letters": 5},
        ),
        ("delays", 5, {"kills": 4}, {"broker kills": 4, "producer kills": 4, "acknowledged": 200}),
        ("halves", 7, {"kills": 3, "pauses": 0.0}, {"broker kills": 3, "committed": 20, "rolled back": 5}),
        *(
            (
                "shared",
                6,
                {"kills": 3, "members": 3, "flush": flush},
                {"broker kills": 1, "member kills": 1, "sent": 20},
            )
            for flush in ("async", "group-commit")
        ),
    ],
)
def test_what_was_promised_is_kept_while_everything_is_killed(
    tmp_path: Path, name: str, seed: int, options: Mapping[str, object], least: Mapping[str, int]
) -> None:
    figures = kept(name, seed, tmp_path, **options).figures
    assert {figure: figures[figure] for figure, value in least.items() if figures[figure] < value} == {}
