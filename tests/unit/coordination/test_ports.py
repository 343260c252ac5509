"""Ports that servers can be started at."""

import pytest

from metaq.coordination.ports import ready_port, ready_ports
from metaq.protocol.errors import ConfigError


def test_port_in_use_is_refused_with_option_port_and_remedy(taken_port):
    with pytest.raises(ConfigError, match=f"--port={taken_port}: .*choose another port"):
        ready_port("--port", taken_port)


def test_a_range_of_ports_is_refused_when_one_of_them_is_taken(taken_port):
    with pytest.raises(ConfigError, match=f"={taken_port}:"):
        ready_ports("--port", taken_port - 1, 2)


def test_port_above_the_range_is_refused():
    with pytest.raises(ConfigError, match="65536"):
        ready_ports("--port", 65535, 2)


def test_port_0_gives_different_free_ports():
    ports = ready_ports("--port", 0, 8)
    assert len(set(ports)) == 8
    assert max(ports) < 32_768  # no outgoing connection is given one of them before its server is started
    assert all(ports)
