"""Whether a partition has the messages that a group has read of it: asked of a real broker without a port."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import PartitionCursor
from metaq.client.fetching.fetcher import Fetcher
from metaq.client.questions.divergence import diverged_at
from metaq.client.questions.partition_bounds import bounds_behind
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.connection import Endpoint
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.where import parse_where
from tests.unit.broker.harness import Harness
from tests.unit.lost_messages import HERE, SIZE, Connection, lost, store


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.threads.run()
    harness.close()


@pytest.fixture
def there(harness: Harness) -> list[int]:
    """Two messages that every node had, and after a minute three that the elected one took; their ids."""
    return store(harness, 0, 2) + store(harness, 60, 3)


@pytest.fixture
def connection(harness: Harness) -> Connection:
    return Connection(harness)


@pytest.mark.parametrize("offset", [3 * SIZE, 2 * SIZE + 3, 5 * SIZE, 1000])
def test_a_group_that_has_read_what_was_lost_goes_back_to_what_came_in_its_place(connection, there, offset):
    """Whether it stands at a message, inside of one, at the end or behind it."""
    assert diverged_at(connection, HERE, offset, lost(1)) == 2 * SIZE


def test_a_group_whose_message_is_there_has_missed_nothing_and_one_request_says_so(connection, there):
    assert diverged_at(connection, HERE, 3 * SIZE, there[2]) is None
    assert len(connection.codes) == 1
    assert diverged_at(connection, HERE, 4 * SIZE, there[1]) is None, "a filter has left out the others"


@pytest.mark.parametrize(
    ("offset", "read"),
    [(2 * SIZE, lost(1)), (3 * SIZE, UNKNOWN_ID), (3 * SIZE, -77), (3 * SIZE, 0), (3 * SIZE, lost(-5))],
    ids=["nothing new in front of it", "no id", "one of Java's", "nor this one", "what retention may have taken"],
)
def test_what_may_be_as_it_was_is_not_missed(connection, there, offset, read):
    """recoverOffset of a synchronous slave has moved a group to where nothing new is in front of it; without an id of
    ours nobody knows."""
    assert diverged_at(connection, HERE, offset, read) is None


def test_an_empty_partition_has_nothing_to_miss(connection):
    assert diverged_at(connection, HERE, 100, lost(1)) is None


def test_a_broker_of_an_earlier_version_does_not_tell(harness, there):
    connection = Connection(harness, earlier=True)
    assert bounds_behind(connection, HERE, 3 * SIZE, lost(1))[2] == UNKNOWN_ID
    assert diverged_at(connection, HERE, 3 * SIZE, lost(1)) is None


# --- a consumer that claims such a partition --------------------------------------------------------------------------


def pulled(connection: Connection, core: ConsumerCore) -> PartitionCursor:
    """The cursor of the claim, once its first pull is answered."""
    cursor = core.owned[HERE]
    request = cursor.next_request(0.0)
    assert request is not None
    reply = connection.call(lambda opaque: core.codec.encode(request, frames=True)(opaque))
    core.answered(request, reply, Endpoint("here", 1), 0.0)
    return cursor


def claimed(offset: int, last_id: int, **options: Any) -> ConsumerCore:
    core = ConsumerCore("audit", ConsumerConfig(), **options)
    core.claim([HERE], [offset], [(offset, last_id)])
    return core


def told(connection: Connection, core: ConsumerCore, doubt: Any, caplog: pytest.LogCaptureFixture) -> str:
    pool: Any = SimpleNamespace(connection=lambda endpoint, seconds: connection)
    timers: Any = SimpleNamespace()
    Fetcher(core, pool, lambda _: None, timers)._look_into(HERE, Endpoint("here", 1), doubt)
    return caplog.text


@pytest.mark.parametrize("offset", [3 * SIZE, 1000])
def test_a_consumer_that_claims_a_partition_which_has_lost_what_was_read_says_so(connection, there, caplog, offset):
    core = claimed(offset, lost(1))
    doubt = pulled(connection, core).take_doubt()
    assert doubt == (offset, lost(1))
    said = told(connection, core, doubt, caplog)
    assert f"t 0-0: messages are lost that group audit had read. It goes on at {offset}, and may skip" in said
    assert f"`metaq groups seek audit --topic t --partition 0-0 --to {2 * SIZE}`" in said
    if offset > 5 * SIZE:
        assert f"position {offset} is not readable, going on at {5 * SIZE}: the partition has lost its end" in said


def test_a_consumer_asks_once_and_again_only_of_another_broker(connection, there):
    cursor = pulled(connection, claimed(3 * SIZE, there[2]))
    assert cursor.take_doubt() is None
    again = cursor.next_request(0.0)
    assert again is not None
    assert again.last_id == UNKNOWN_ID
    cursor = pulled(connection, claimed(5 * SIZE, lost(1)))
    assert cursor.take_doubt() == (5 * SIZE, lost(1))
    cursor.ask_anew()
    request = cursor.next_request(0.0)
    assert request is not None
    assert request.last_id == lost(1)


@pytest.mark.parametrize("options", [{"tags": frozenset({"a"})}, {"where": parse_where("x = 1")}])
def test_a_consumer_that_leaves_messages_out_does_not_ask(connection, there, options):
    """What lies in front of its position is then another message than it has handed out."""
    assert pulled(connection, claimed(3 * SIZE, lost(1), **options)).take_doubt() is None


def test_the_message_of_a_doubt_that_is_there_is_no_reason_to_say_anything(connection, there, caplog):
    """The broker's filter of the group has left out others."""
    core = claimed(4 * SIZE, there[1])
    doubt = pulled(connection, core).take_doubt()
    assert doubt == (4 * SIZE, there[1])
    assert "lost" not in told(connection, core, doubt, caplog)
