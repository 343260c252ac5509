"""A broker with a version of Twisted whose private parts are not known: it serves through the public interface."""

from __future__ import annotations

import os
from pathlib import Path

from twisted import __version__ as installed

from metaq.broker.network.transport import TESTED
from metaq.protocol.record import HEADER_BYTES, checksum
from metaq.protocol.text import Result, Value, encode_get, encode_put, parse_put_result
from tests.broker_process import RunningBroker, server_ini

LARGE = os.urandom(900_000)
UNTESTED = """
import runpy
import metaq.broker.network.transport as transport
transport.connection_class.__defaults__ = ("99.1.0",)
runpy.run_module("metaq.broker", run_name="__main__", alter_sys=True)
"""


def test_the_installed_twisted_is_one_of_the_tested_versions() -> None:
    year, month = map(int, installed.split(".")[:2])
    assert TESTED[0] <= (year, month) <= TESTED[1]


def test_a_broker_with_an_untested_twisted_warns_and_serves(tmp_path: Path) -> None:
    program = tmp_path / "untested.py"
    program.write_text(UNTESTED)
    ini = server_ini(tmp_path / "data", {"t": ""}, unflush_threshold=1000)
    with RunningBroker(tmp_path, ini, module=(str(program),)) as broker, broker.connect() as connection:
        bodies = [b"small", LARGE, *(b"%d" % number for number in range(500))]
        connection.send(b"".join(encode_put("t", 0, 0, checksum(body), 1, body) for body in bodies))
        results = [
            parse_put_result(answer.text) for answer in connection.answers(len(bodies)) if isinstance(answer, Result)
        ]
        assert [result[2] for result in results[:2]] == [0, HEADER_BYTES + 5]
        connection.send(encode_get("t", "g", 0, results[1][2], HEADER_BYTES + len(LARGE), 2))
        (value,) = connection.answers(1)
        assert isinstance(value, Value)
        assert bytes(value.data[HEADER_BYTES:]) == LARGE
        assert "not tested with Twisted 99.1" in broker.errors.read_text()
        assert broker.stop() == 0
