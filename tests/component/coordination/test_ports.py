"""Ports that servers can be started at."""

import socket
import subprocess
import sys

import pytest

from metaq.coordination.servers.free_ports import ready_port, ready_ports
from metaq.protocol.errors import ConfigError


def test_port_in_use_is_refused_with_option_port_and_remedy(taken_port):
    with pytest.raises(ConfigError, match=f"--port={taken_port}: .*choose another port"):
        ready_port("--port", taken_port)


def test_a_range_of_ports_is_refused_when_one_of_them_is_taken():
    for first in ready_ports("--port", 0, 20):
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", first + 1))
            except OSError:
                continue  # somebody else has it
            taken.listen(1)
            with pytest.raises(ConfigError) as refused:
                ready_ports("--port", first, 2)
            if f"={first}:" not in str(refused.value):  # else somebody else has just taken that
                break
    assert f"={first + 1}:" in str(refused.value)


def test_port_above_the_range_is_refused():
    with pytest.raises(ConfigError, match="65536"):
        ready_ports("--port", 65535, 2)


def test_port_0_gives_different_free_ports():
    ports = ready_ports("--port", 0, 8)
    assert len(set(ports)) == 8
    assert max(ports) < 32_768  # no outgoing connection is given one of them before its server is started
    assert all(ports)


def test_a_free_port_is_given_to_nobody_else_until_its_server_listens_and_while_that_is_down():
    choose = "import random\nfrom metaq.coordination.servers.free_ports import ready_ports\n"
    port = ready_port("--port", 0)
    for _ in range(2):
        # another process that would have chosen the same one, as two that start servers at once may
        script = f"{choose}random.choice = lambda _: {port}\nprint(*ready_ports('--port', 0, 1))"
        assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout != b"%d\n" % port
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen(1)
            with socket.create_connection(("127.0.0.1", port)):
                pass
