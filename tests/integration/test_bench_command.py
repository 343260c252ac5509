"""`python -m bench` on real processes, as small as it gets: what it writes, not how fast anything is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import ProcessFailed, Worker
from tests.waiting import DEADLINE

pytest.importorskip("confluent_kafka", reason="of the extra [bench]")

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--rounds", "2", "--seconds", "0.1", "--warm-up", "0.1", "--backlog", "4000", "--latency-seconds", "0.2")


def bench(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *TINY, "--cold-memory", "--system", "ours", "--output", str(output)]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=4 * DEADLINE)


def test_a_generator_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    with Worker([sys.executable, "-c", "import time; input(); time.sleep(600)"], tmp_path / "log") as worker:
        with pytest.raises(ProcessFailed, match=r"no answer to 'send 1' in 0\.5 s"):
            worker.call("send", 1, seconds=0.5)
        assert worker.process.poll() is not None


def test_two_sittings_make_one_result(tmp_path: Path) -> None:
    first = bench(tmp_path, "--scenario", "sync-256", "--scenario", "batch-1024")
    assert first.returncode in {0, 1}, first.stderr
    second = bench(tmp_path, "--merge", "--scenario", "consume", "--scenario", "latency")
    assert second.returncode in {0, 1}, second.stderr
    content = json.loads((tmp_path / "results.json").read_text())
    runs = {each["scenario"]: each["runs"] for each in content["scenarios"]}
    assert runs.keys() == {"sync-256", "batch-1024", "consume", "latency"}
    assert [len(answers) for answers in runs["sync-256"].values()] == [2, 2]
    assert not any(each["failures"] for each in content["scenarios"])
    assert all(each["memory"]["ours"]["peak_mb"] > 10 for each in content["scenarios"])
    page = (tmp_path / "RESULTS.md").read_text()
    assert "× ours, asynchronous |" in page
    for name in runs:
        assert f"![{name}](plots/{name}.png)" in page
        assert (tmp_path / "plots" / f"{name}.png").exists()
    # a missed bar is the only reason for another code than 0
    assert ("missed:" in second.stdout) == (second.returncode == 1)


def test_kinds_of_messages_are_measured(tmp_path: Path) -> None:
    names = ("delayed-blocking-1", "delayed-pipelined", "delayed-lateness", "transactions-64", "shared")
    done = bench(tmp_path, *(word for name in names for word in ("--scenario", name)))
    assert done.returncode in {0, 1}, done.stderr
    content = json.loads((tmp_path / "results.json").read_text())
    assert [each["scenario"] for each in content["scenarios"]] == [*names]
    assert not any(each["failures"] for each in content["scenarios"])
    runs = {each["scenario"]: each["runs"]["ours"] for each in content["scenarios"]}
    assert all(run["min_ms"] >= 0.0 for run in runs["delayed-lateness"])
    assert [(run["workers"], run["twice"]) for run in runs["shared"]] == [(64, 0)] * 2
