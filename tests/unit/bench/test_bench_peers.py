"""The systems that are no metaq: what is started for them, what they are asked, and what is concluded."""

import json
import struct
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pyarrow
import pytest

from bench.compare import Measured
from bench.loops import STAMP, Generator, answer, serve
from bench.peers import kafka_properties, peer_versions, rocketmq_properties
from bench.plot import write_plots
from bench.report import markdown, unmet_bars
from bench.systems import BROKER_OF, JAVA, OURS, PEERS


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
    [("send_blocking t 3 100 16", 100), ("send_async t 8 100 16", 100), ("send_batch t 30 100 16", 90)],
)
def test_every_message_of_a_command_is_sent_and_counted(line, count):
    client = Loop()
    said = answer(Generator(client), line)
    assert said["count"] == len(client.queue) == count
    assert said["rate"] == pytest.approx(count / said["seconds"])
    assert {len(data) for data in client.queue} == {16}


@pytest.mark.parametrize("line", ["send_blocking t 2 5 16", "send_async t 2 5 16", "latency t g 1000000 0 2 64"])
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
    said = answer(Generator(Loop()), "latency t g 1000000 30 20 64")
    assert said["count"] == 20
    assert 0 < said["p50_ms"] <= said["p99_ms"] <= said["max_ms"]
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


def test_every_peer_has_a_broker():
    assert {BROKER_OF[peer] for peer in PEERS} == {"kafka", "rocketmq"}


def test_versions_are_those_of_the_maven_project():
    assert all(version[0].isdigit() for version in peer_versions().values())


def test_kafka_is_one_node_that_votes_for_itself():
    lines = kafka_properties(9001, 9002, Path("/data")).splitlines()
    assert "controller.quorum.voters=1@127.0.0.1:9002" in lines
    assert "advertised.listeners=PLAINTEXT://127.0.0.1:9001" in lines
    assert "log.dirs=/data" in lines


def test_rocketmq_keeps_everything_below_its_directory():
    lines = rocketmq_properties("127.0.0.1:1", 9001, Path("/data")).splitlines()
    assert {"storePathRootDir=/data", "storePathCommitLog=/data/commitlog", "listenPort=9001"} <= set(lines)


# --- what is concluded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "peer", "bar"),
    [("pipelined", "rocketmq", 2.0), ("batch", "confluent_kafka", 2.0), ("consume", "confluent_kafka", 1.2)],
)
def test_bar_of_a_peer_is_the_least_ratio_of_ours_to_it(scenario, peer, bar):
    assert unmet_bars([measured(scenario, ours=bar * 100, **{peer: 100.0})], None) == []
    (line,) = unmet_bars([measured(scenario, ours=bar * 99, **{peer: 100.0})], None)
    assert peer.replace("_", "-") in line


def test_page_has_a_column_for_each_measured_peer_and_no_empty_table():
    page = markdown([measured("batch", ours=300.0, kafka=200.0)], None, 1, ["plots/batch.png"])
    assert "| scenario | our broker, our client | kafka |" in page
    assert "| batch sends, 500 a batch | 300 | 200 (1.50×) |" in page
    assert "![batch](plots/batch.png)" in page
    only = markdown([measured("batch", rocketmq=200.0)], None, 1)
    assert "Java broker, Java client |" not in only
    assert "| batch sends, 500 a batch | – | 200 |" in only
    assert "rocketmq |" not in markdown([Measured("batch", {JAVA: [{"rate": 1.0}]})], None, 1)


def test_each_scenario_gets_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="of the extra [bench]")
    latency = Measured("latency", {OURS: [{"p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0}]})
    written = write_plots([measured("batch", ours=1.0, kafka=2.0), latency, Measured("consume")], tmp_path / "plots")
    assert [path.name for path in written] == ["batch.png", "latency.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_answers_are_json(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", ["send_async t 8 5 16\n"])
    serve(Generator(Loop()))
    assert json.loads(capsys.readouterr().out)["count"] == 5
