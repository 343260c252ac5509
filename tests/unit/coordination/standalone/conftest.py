"""A standalone ZooKeeper without sockets, and a client of it."""

import pytest

from tests.unit.coordination.standalone.harness import Client, Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()
