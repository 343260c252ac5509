"""Every error goes to another process and back: `multiprocessing` and Spark pickle what a worker raises."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import metaq
from metaq.client.transport.connection import Endpoint
from metaq.protocol.errors import MetaqError
from metaq.protocol.topic_partition import TopicPartition
from metaq.spark_connector.offsets import Lost, PartitionState

PLACE = TopicPartition("orders", 1, 2)

SAMPLES: dict[str, Any] = {
    "str": "a text: with %s",
    "int": 7,
    "int | None": 8,
    "float": 1.5,
    "bool": True,
    "object": "http://a",
    "Mapping[tuple[str, str], int]": {("orders", "a reason"): 3},
    "Sequence[Lost]": [Lost(PLACE, 1, 5)],
    "Sequence[tuple[PartitionState, int]]": [(PartitionState(PLACE, Endpoint("localhost", 8123), 3, 9), 1)],
}
"""An argument for each annotation."""


def kinds(of: type[MetaqError] = MetaqError) -> Iterator[type[MetaqError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


for module in pkgutil.walk_packages(metaq.__path__, "metaq."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

KINDS = sorted(set(kinds()), key=lambda kind: (kind.__module__, kind.__name__))


def sample(kind: type[MetaqError]) -> MetaqError:
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return kind("a text")
    by_name = {each.name: SAMPLES[str(each.annotation).strip("'")] for each in parameters}
    return kind(**by_name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[MetaqError]) -> None:
    error = sample(kind)
    error.add_note("said later")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_all_errors_are_looked_at() -> None:
    assert len(KINDS) > 60
