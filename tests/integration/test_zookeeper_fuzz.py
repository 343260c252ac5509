"""The standalone ZooKeeper answers as Apache's does: some thousand operations of the fuzz, which can do millions.

Killed, it keeps what it has acknowledged."""

import datetime
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.test_kills import kept

SEED = datetime.datetime.now(datetime.UTC).date().toordinal() * 1000
"""Others each day: a seed that has passed tells nothing more."""


@pytest.mark.parametrize(
    ("scenario", "options", "least"),
    [
        pytest.param("fuzz", {"operations": 2000, "length": 1000}, 2000, id="it does not differ from Apache's"),
        pytest.param("zookeeper", {"seconds": 3.0}, 1, id="nothing acknowledged is lost when it is killed"),
    ],
)
def test_the_standalone_zookeeper(tmp_path: Path, scenario: str, options: Mapping[str, object], least: int):
    figures = kept(scenario, SEED, tmp_path, **options).figures
    assert min(value for name, value in figures.items() if name != "lists") >= least
