"""A broker that cannot listen says why, and which setting to change."""

import socket

import pytest
from twisted.internet import reactor

from metaq.broker.assembly.server import SessionFactory, listen
from metaq.protocol.errors import ConfigError
from tests.unit.broker.harness import Harness


@pytest.fixture
def harness(tmp_path):
    harness = Harness(tmp_path)
    yield harness
    harness.close()


def test_a_taken_port_is_named_with_its_remedy(harness):
    object.__setattr__(harness.broker.config, "listen", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        object.__setattr__(harness.broker.config, "port", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"serverPort=\d+: cannot listen there .*in use.*serverPort"):
            listen(harness.broker, SessionFactory(harness.broker, harness.gate, 1), reactor)


def test_an_address_that_the_machine_does_not_have_is_named_with_its_remedy(harness):
    object.__setattr__(harness.broker.config, "port", 0)
    object.__setattr__(harness.broker.config, "listen", "192.0.2.1")  # for documents only
    with pytest.raises(ConfigError, match=r"--listen=192\.0\.2\.1: cannot listen there .*of this machine"):
        listen(harness.broker, SessionFactory(harness.broker, harness.gate, 1), reactor)
