"""The standalone ZooKeeper takes requests that are larger than what it buffers of waiting ones."""

from kazoo.client import KazooClient

from metaq.broker.standalone.driver import BUFFERED_BYTES
from metaq.broker.standalone.in_process import InProcessZooKeeper
from tests.waiting import DEADLINE


def test_a_packet_of_nearly_the_largest_size_is_taken_and_given_back():
    data = bytes(1_000_000)
    assert len(data) > BUFFERED_BYTES
    with InProcessZooKeeper() as server:
        client = KazooClient(server.connect_string, timeout=DEADLINE)
        client.start()
        try:
            client.create_async("/large", data).get(timeout=10)
            assert client.get_async("/large").get(timeout=10)[0] == data
        finally:
            client.stop()
            client.close()
