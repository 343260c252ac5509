"""The demo as users run it, on a part of its input; and what it leaves behind when it is interrupted."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.waiting import eventually

from .cli_helpers import is_running, run, start, stop

SHORT = ("demo", "--flights", "20000", "--rate", "3000")


def processes_below(directory: Path) -> list[int]:
    """Processes whose command line names `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if str(directory).encode() in command:
                found.append(int(entry.name))
    return [pid for pid in found if is_running(pid)]


def test_the_demo_loses_nothing_says_so_and_leaves_its_cluster_to_play_with(tmp_path):
    process = start(*SHORT, "--keep", env={"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.decode())
        if line.split() == [b"metaq", b"topics", b"list"]:
            break
    out = "".join(said)
    (zookeeper,) = re.findall(r"export METAQ_ZK=(\S+)", out)
    asked = run("topics", "describe", "flights", "--json", env={"METAQ_ZK": zookeeper})
    assert sum(row["messages"] for row in json.loads(asked.out)["partitions"]) == 20_000
    assert stop(process, signal.SIGINT) == 0, out
    figures = dict(re.findall(r"│ (\w[\w ]*?) +│ +(.*?) +│", out))
    assert figures["sent"] == "20,000 messages"
    assert figures["lost"] == figures["out of order"] == "0"
    assert figures["lag"].split() == ["0-0:", "0", "0-1:", "0", "0-2:", "0", "0-3:", "0"] + [
        word for number in range(4) for word in (f"1-{number}:", "0")
    ]
    assert re.search(r"c3 joins: \d\.\d\d s", out)
    assert re.search(r"c1 is killed by SIGKILL .*: \d\.\d\d s", out)
    assert len(re.findall(r" equal ", out)) >= 14  # carriers
    assert "differs" not in out
    assert max(map(len, out.splitlines())) <= 100
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []


def test_the_demo_leaves_spark_out_without_java():
    ran = run("demo", "--flights", "2000", env={"JAVA_HOME": "/none"})
    assert ran.code == 0, ran.err
    assert re.search(r"Spark, is left out: java=none in JAVA_HOME=/none: Java 17 or newer is needed", ran.out), ran.out
    assert "│ Spark job    │ left out" in ran.out
    assert ran.out.splitlines()[-1] == "OK nothing lost"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_demo_that_is_ended_leaves_no_process_behind_and_on_ctrl_c_no_file(tmp_path, number, code):
    process = start("demo", env={"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    for line in process.stdout:
        if b"c1 and c2 start" in line:
            break
    assert len(processes_below(tmp_path)) >= 4  # ZooKeeper's and the brokers' files, the consumers' histories
    assert stop(process, number) == code
    eventually(lambda: not processes_below(tmp_path))
    assert number == signal.SIGKILL or list(tmp_path.iterdir()) == []


def test_the_demo_needs_its_data_directory_for_itself(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ran = run("demo", "--data-dir", str(tmp_path / "file" / "x"))
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "--data-dir" in ran.err
