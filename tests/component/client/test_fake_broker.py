"""The broker of metaq.testing, where its clients do what a broker must live with."""

import socket
import struct

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker
from tests.waiting import eventually


def test_a_client_that_is_gone_before_its_parked_pull_is_answered_ends_no_broker():
    with FakeBroker({"t": 1}) as broker:
        with socket.create_connection((broker.endpoint.host, broker.endpoint.port)) as client:
            pull = PullRequest("t", 0, 0, 1000, wait_ms=15_000)
            client.sendall(encode_frame(RequestCode.PULL, 1, pull.to_ext()))
            eventually(lambda: broker._parked)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the close is a reset

            def cut_and_append() -> None:
                """On the broker's thread: it answers before it looks at the connection again."""
                client.close()
                broker.log("t", 0).append(b"1", 1, 0)

            broker.run_there(cut_and_append)
        assert broker.append("t", 0, b"2")


def test_the_port_of_a_stopped_broker_goes_to_nobody_but_its_successor():
    with FakeBroker({"t": 1}) as broker:
        place = (broker.endpoint.host, broker.endpoint.port)
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)
        with socket.socket() as another, pytest.raises(OSError, match="already in use"):
            another.bind(place)
        with FakeBroker({"t": 1}, port=broker.endpoint.port):
            socket.create_connection(place).close()
    with socket.socket() as another:
        another.bind(place)
