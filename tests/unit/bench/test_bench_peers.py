"""The systems that are no metaq: what is started for them, what they are asked, and what is concluded."""

import json
import struct
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pyarrow
import pytest

from bench.loops import STAMP, Generator, answer, serve
from bench.measured import Measured, Results
from bench.names import OURS
from bench.peers import kafka_properties, peer_versions, rocketmq_properties
from bench.plot import write_plots


def measured(scenario: str, **rates: float) -> Measured:
    return Measured(scenario, {name.replace("_", "-"): [{"rate": rate}] for name, rate in rates.items()})


class Loop:
    """A client whose messages come back to the next consumer."""

    def __init__(self, refuses: bool = False):
        self.refuses = refuses
        self.queue: list[bytes] = []
        self.batches: list[int] = []

    def send(self, topic, data):
        return self.send_async(topic, data).result()

    def send_async(self, topic, data):
        self.queue.append(data)
        return self

    def result(self):
        if self.refuses:
            raise RuntimeError("refused")

    def produce(self, topic, data, count):
        self.queue += [data] * count

    def send_batches(self, topic, payloads, batches):
        self.batches.append(batches)
        self.queue += payloads * batches

    @contextmanager
    def consume(self, topic, group):
        def poll():
            taken, self.queue = self.queue[:10], self.queue[10:]
            return taken

        yield poll

    @contextmanager
    def consume_arrow(self, topic, group):
        def poll():
            taken, self.queue = self.queue[:10], self.queue[10:]
            return pyarrow.record_batch({"payload": pyarrow.array(taken, pyarrow.binary())})

        yield poll

    def data(self, message):
        return message

    def close(self):
        self.queue.clear()


# --- the loops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("send_blocking t 3 100 16", 100),
        ("send_async t 8 100 16", 100),
        ("send_batch t 30 100 16", 90),
        ("produce t 100 16", 100),
        ("futures t 100 16", 100),
    ],
)
def test_every_message_of_a_command_is_sent_and_counted(line, count):
    client = Loop()
    said = answer(Generator(client), line)
    assert said["count"] == len(client.queue) == count
    assert said["rate"] == pytest.approx(count / said["seconds"])
    assert {len(data) for data in client.queue} == {16}


@pytest.mark.parametrize("line", ["send_blocking t 2 5 16", "send_async t 2 5 16", "latency t g 1000000000 0 2 64"])
def test_a_refused_send_fails_the_command(line):
    assert answer(Generator(Loop(refuses=True)), line) == {"error": "RuntimeError: refused"}


@pytest.mark.parametrize("command", ["consume", "consume_arrow"])
def test_messages_of_the_first_poll_start_the_clock_and_do_not_count(command):
    client = Loop()
    client.queue = [b"1234"] * 40
    said = answer(Generator(client), f"{command} t g 35 60")
    assert said["count"] == 30
    assert said["bytes"] >= 160


def test_too_small_a_backlog_fails_the_command():
    assert "received 0 of 5" in answer(Generator(Loop()), "consume t g 5 0")["error"]


def test_latency_leaves_out_the_warm_up():
    said = answer(Generator(Loop()), "latency t g 1000000000 30 20 64")
    assert said["count"] == 20
    assert 0 < said["p50_ms"] <= said["p99_ms"] <= said["p99.9_ms"] <= said["max_ms"]
    assert struct.calcsize(STAMP.format) == 12  # as the Java generators write it


def test_unknown_command_is_named_with_those_there_are():
    assert "known are ['consume'" in answer(Generator(Loop()), "dance")["error"]


@pytest.mark.parametrize("module", ["bench.worker", "bench.kafka_workers", "bench.aiokafka_worker"])
def test_a_generator_without_an_address_says_how_it_is_used(module, monkeypatch):
    if module == "bench.aiokafka_worker":
        pytest.importorskip("aiokafka", reason="of the extra [bench]")
    monkeypatch.setattr(sys, "argv", [module])
    with pytest.raises(SystemExit, match=f"usage: python -m {module}"):
        import_module(module).main()


# --- what is started ------------------------------------------------------------------------------------------------


def test_versions_are_those_of_the_maven_project():
    assert all(version[0].isdigit() for version in peer_versions().values())


def test_kafka_is_one_node_that_votes_for_itself():
    expected = {"controller.quorum.voters=1@127.0.0.1:9002", "advertised.listeners=PLAINTEXT://127.0.0.1:9001"}
    assert expected | {"log.dirs=/data"} <= {*kafka_properties(9001, 9002, Path("/data")).splitlines()}


def test_rocketmq_keeps_everything_below_its_directory(monkeypatch):
    monkeypatch.setattr("bench.peers.free_port", lambda: 9002)
    lines = rocketmq_properties("127.0.0.1:1", 9001, Path("/data"), False).splitlines()
    assert {"storePathRootDir=/data", "storePathCommitLog=/data/commitlog", "listenPort=9001"} <= set(lines)
    assert "flushDiskType=ASYNC_FLUSH" in lines
    assert "flushDiskType=SYNC_FLUSH" in rocketmq_properties("127.0.0.1:1", 9001, Path("/data"), True)


# --- pictures and lines ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fonts():
    """Found before the test: on a new machine matplotlib starts a process that lists them."""
    pytest.importorskip("matplotlib.font_manager", reason="of the extra [bench]")


@pytest.mark.usefixtures("fonts")
def test_each_scenario_gets_a_picture(tmp_path):
    latency = Measured("latency", {OURS: [{"p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0}]})
    scenarios = {each.scenario: each for each in (measured("batch", ours=1.0, kafka=2.0), latency, Measured("consume"))}
    written = write_plots(Results({}, scenarios), tmp_path / "plots")
    assert {name: path.name for name, path in written.items()} == {"batch": "batch.png", "latency": "latency.png"}
    for path in written.values():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 60_000  # they are committed


def test_answers_are_json(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", ["send_async t 8 5 16\n"])
    serve(Generator(Loop()))
    assert json.loads(capsys.readouterr().out)["count"] == 5
