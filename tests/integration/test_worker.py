"""`metaq worker`, with the functions and commands of docs/worker.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from bench.processes import free_port
from metaq import Producer
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import Brokers
from tests.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "worker.md").read_text("utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^metaq (worker .*)$", PAGE, re.MULTILINE)
TOPICS = {"orders": 2}
FAILING = """
import os, pathlib, time
HERE = pathlib.Path.cwd()
os.chdir("/")  # the next process starts in the former directory nevertheless
def handle(message):
    text = message.payload.decode()
    if text == "bad":
        raise ValueError("no")
    if text == "slow":
        (HERE / "slow").touch()
        time.sleep(1)
    print(f"{os.getpid()} {text}", flush=True)
"""


class Worker:
    """A worker in a directory of its own; its output goes to files there."""

    def __init__(self, directory: Path, connect: str, *arguments: str) -> None:
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "metaq", *arguments],
                cwd=directory,
                env=os.environ | {"METAQ_ZK": connect},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def wait_for(self, condition: Callable[[list[str]], object]) -> list[str]:
        eventually(lambda: condition(self.lines()), what=f"the handler's output, after {self.err.read_text()[-2000:]}")
        return self.lines()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path, brokers: Brokers) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def begin(*arguments: str) -> Worker:
        started.append(Worker(tmp_path, brokers.connect, *arguments))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


@pytest.mark.parametrize(
    ("name", "number", "body", "printed"),
    [
        ("shop", 0, b"1", "order 1"),
        ("aio", 1, b"2", "async 2"),
        ("values", 2, b'{"id": 3}', "value 3"),
    ],
)
def test_a_function_of_the_docs_handles_messages(start, brokers, tmp_path, name, number, body, printed):
    (tmp_path / f"{name}.py").write_text(CODE[number])
    worker = start(*shlex.split(COMMANDS[number]))
    with Producer(brokers.connect) as producer:
        producer.send("orders", body)
    assert worker.wait_for(len) == [printed]
    assert worker.stop() == 0


def test_processes_are_replaced_failures_become_dead_letters_and_a_stop_waits(start, brokers, tmp_path):
    (tmp_path / "job.py").write_text(FAILING)
    port = free_port()
    options = ("--topic", "orders", "--group", "g", "--shared", "--attempts", "1", "--processes", "2")
    worker = start("worker", "job:handle", *options, "--health", str(port))

    def health() -> tuple[int, dict[str, int]]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    eventually(lambda: health() == (200, {"processes": 2, "wanted": 2, "restarts": 0}), what="two processes")
    with Producer(brokers.connect) as producer:
        for number in range(50):
            producer.send("orders", b"%d" % number)
        pids = {int(line.split()[0]) for line in worker.wait_for(lambda lines: len(lines) >= 50)}
        os.kill(min(pids), signal.SIGKILL)
        eventually(lambda: health()[1].get("restarts") == 1 and health()[0] == 200, what="another process")
        producer.send("orders", b"bad")
        producer.send("orders", b"slow")
        eventually((tmp_path / "slow").exists, what="the slow call")
    assert worker.stop() == 0
    lines = [line.split()[1] for line in worker.lines()]
    assert set(lines) == {*map(str, range(50)), "slow"}
    listed = Operator(brokers.connect).json("dead-letters", "list", "--group", "g")
    assert len(listed) == 1, listed
    assert f"the worker process {min(pids)} was ended by SIGKILL" in worker.err.read_text()


def test_a_changed_file_starts_the_worker_again_also_after_a_mistake(start, brokers, tmp_path):
    file = tmp_path / "shop.py"
    file.write_text(CODE[0])
    worker = start(*shlex.split(COMMANDS[0]), "--reload")
    with Producer(brokers.connect) as producer:
        producer.send("orders", b"1")
        worker.wait_for(lambda lines: lines == ["order 1"])
        file.write_text("def handle(message:\n")
        eventually(lambda: "SyntaxError" in worker.err.read_text(), what="the mistake to be told")
        file.write_text(CODE[0].replace("order", "new"))
        producer.send("orders", b"2")
        assert worker.wait_for(lambda lines: len(lines) == 2) == ["order 1", "new 2"]
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("nowhere:handle", 2, "there is no module nowhere"),
        ("shop:nothing", 2, "shop has no nothing"),
        ("shop:text", 2, "is a str: name a function"),
        ("shop", 2, "write MODULE:FUNCTION"),
        ("broken:handle", 1, "broken imports missing_thing, which is not there"),
    ],
)
def test_a_handler_that_cannot_be_called_is_told_at_once(brokers, tmp_path, name, code, said):
    (tmp_path / "shop.py").write_text(CODE[0] + "\ntext = 'no function'\n")
    (tmp_path / "broken.py").write_text("import missing_thing\n")
    worker = Worker(tmp_path, brokers.connect, "worker", name, "--topic", "orders", "--group", "g")
    assert worker.process.wait(60) == code
    assert said in worker.err.read_text()
    assert worker.err.read_text().count("\n") <= 2
