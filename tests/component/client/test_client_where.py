"""Filters by content over both protocols: what comes, what travels, and where the consumer stands."""

import pytest

from metaq import ConsumerConfig, Message, PartitionReader, TopicPartition
from metaq.client.questions.stored_records import read_chosen
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import open_connection
from metaq.protocol.where import Where
from metaq.testing import FakeBroker
from tests.component.client.harness import address
from tests.properties import LISTED, body_with
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

HERE = TopicPartition("t", 0, 0)


def fill(broker, count, payload=b"x" * 1000):
    bodies = [body_with({"region": "EU" if n % 10 == 0 else "US", "n": n}, payload) for n in range(count)]
    return broker.append("t", 0, *bodies, flag=LISTED)


def places(messages):
    return [message.offset for message in messages]


def read(reader, count):
    found: list[Message] = []
    while len(found) < count:
        messages = reader.poll(timeout=DEADLINE)
        assert messages, f"only {len(found)} messages came"
        found += messages
    return found


@pytest.mark.parametrize("takes_where", [True, False])
@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_the_same_messages_come_whoever_filters(broker, protocol, takes_where):
    broker.takes_where = takes_where
    offsets = fill(broker, 100)
    with PartitionReader(
        address(broker), HERE, where="region = 'EU' AND n >= 50", config=speaking(protocol, ConsumerConfig())
    ) as reader:
        assert places(read(reader, 5)) == offsets[50::10]
        end = broker.log("t", 0).end
        eventually(lambda: reader.poll(timeout=0.05) == [] and reader.position == end, DEADLINE)
        later = fill(broker, 60)
        assert places(read(reader, 1)) == [later[50]]


class Counting(FakeBroker):
    """Counts the bytes of its answers."""

    sent = 0

    def _reply(self, caller, opaque, code, ext, body=b"", remark=""):
        self.sent += len(body)
        super()._reply(caller, opaque, code, ext, body, remark)


def test_what_a_broker_leaves_out_does_not_travel():
    with Counting({"t": 1}) as broker:
        offsets = fill(broker, 1000)
        with PartitionReader(address(broker), HERE, where="n IN (7, 500)") as reader:
            assert places(read(reader, 2)) == [offsets[7], offsets[500]]
            eventually(lambda: reader.poll(timeout=0.05) == [] and reader.position == broker.log("t", 0).end, DEADLINE)
        assert broker.sent < 3 * 1100


def test_a_filter_that_the_broker_refuses_is_said_and_tried_again(broker, caplog):
    """A newer client's language may have more than an older broker knows."""
    fill(broker, 20)
    broker.refuse = lambda request: 13 if getattr(request, "code", 0) == 11 else None
    with PartitionReader(address(broker), HERE, where="n = 10") as reader:
        assert reader.poll(timeout=0.5) == []
        assert "refused by the test" in caplog.text
        broker.refuse = lambda request: None
        assert len(read(reader, 1)) == 1


@pytest.fixture(params=[True, False])
def connection(broker, request):
    broker.takes_where = request.param
    connection = open_connection(broker.endpoint, ConnectionConfig())
    yield connection
    connection.close()


def test_one_question_gives_what_the_filter_leaves_and_where_to_go_on(broker, connection):
    offsets = fill(broker, 30)
    end = broker.log("t", 0).end
    where = Where("n = 3 OR n = 20")
    found: list[Message] = []
    position = 0
    while position < end:
        messages, following = read_chosen(connection, HERE, position, 5000, where)
        assert following > position
        found, position = found + messages, following
    assert places(found) == [offsets[3], offsets[20]]
    assert read_chosen(connection, HERE, end, 5000, where) == ([], end)
