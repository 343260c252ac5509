"""Each pair of message kinds works, or is refused by name, as docs/combinations.md says.

The cases are in tests/integration/combinations. All share one broker, whose clients go through a proxy that loses
answers on request. The first half of each case runs before the first test; so what messages wait for, and Spark's
jobs, are waited for once.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from bench.server_ini import Topics
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from tests.integration.combinations.declared import KINDS, Combination, declared
from tests.integration.combinations.world import World
from tests.integration.java_peers import require_java
from tests.integration.java_sides import running_side

CASES = tuple(declared().values())
PACKED = {"numPartitions": 1, "acceptCompressed": "true"}
TOPICS: Topics = {
    **{each.topic: PACKED if "compression" in each else 1 for each in CASES},
    "spark-read-spark-write-copy": 1,
}


class Prepared:
    """The world, and the cases that are in the middle, or what has ended one too early."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.halves: dict[str, Generator[None]] = {}

    def prepare(self, case: Combination) -> None:
        half: Any = case.case(self.world, case.topic)
        try:
            next(half)
        except Exception as error:
            self.world.failed[case.topic] = error
        else:
            self.halves[case.topic] = half

    def check(self, case: Combination) -> None:
        if case.topic in self.world.failed:
            raise self.world.failed[case.topic]
        for _ in self.halves.pop(case.topic):
            raise AssertionError("a case has two halves")


@pytest.fixture(scope="module")
def prepared(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prepared]:
    require_java()
    functions: list[Any] = [item for item in request.session.items if item.path == request.path]
    chosen: list[Combination] = [each.callspec.params["case"] for each in functions if hasattr(each, "callspec")]
    connect = f"{zookeeper.connect_string}/combinations"
    directory = tmp_path_factory.mktemp("combinations") / "side"
    with running_side("ours", connect, directory, TOPICS) as side, World(side, chosen) as world:
        prepared = Prepared(world)
        for case in chosen:
            if case.works:
                prepared.prepare(case)
        if any("Spark read" in case or "Spark write" in case for case in chosen):
            world.run_spark(request.getfixturevalue("spark"))
        yield prepared


@pytest.mark.parametrize("case", [pytest.param(each, id=each.topic) for each in CASES])
def test_a_pair_works_or_is_refused_by_name(prepared: Prepared, case: Combination) -> None:
    if case.works:
        prepared.check(case)
        return
    text = case.case(prepared.world, case.topic)
    assert isinstance(text, str)
    words = ".*".join(re.escape(part) for part in case.note.split("…"))
    assert re.search(words, text), text
    for kind in (case.first, case.second):
        assert re.search(KINDS[kind], text), f"{text!r} does not name {kind}"


def test_nothing_has_come_twice_since(prepared: Prepared) -> None:
    """Each case has seen exactly what it sent, when it looked."""
    assert prepared.world.come_since() == []
