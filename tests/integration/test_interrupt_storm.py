"""A client whose main thread is interrupted again and again, by real signals, loses nothing of anybody."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.client_cluster import running_brokers

ROOT = Path(__file__).parent.parent.parent

INTERRUPTS = 300


def run(storm: str, *connect: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.integration.interrupt_storm", storm, str(INTERRUPTS), *connect]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, int] = json.loads(done.stdout)
    assert [name for name in seen if name.endswith("lost")] == [], done.stderr
    assert seen["interrupts"] == INTERRUPTS
    assert seen["futures"] > 0
    return seen


@pytest.mark.parametrize("storm", ["calls", "sends", "futures", "flushes", "full_buffers", "ordered_sends", "saves"])
def test_hundreds_of_interrupts_lose_nothing_of_this_thread_and_of_another(storm: str):
    run(storm)


@pytest.mark.parametrize("storm", ["polls", "members"])
def test_hundreds_of_interrupts_of_consumers_lose_no_message_and_leave_no_member(
    storm: str, chroot: str, tmp_path: Path
):
    with running_brokers(chroot, tmp_path, {"t": 4}):
        run(storm, chroot)
