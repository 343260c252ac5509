"""What the tests of all kinds share."""

import socket

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # how long an example takes is the machine's business
settings.load_profile("patient")


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(params=["auto", "text"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The client's option: frames where the broker speaks them, or 1.x text."""
    return str(request.param)
