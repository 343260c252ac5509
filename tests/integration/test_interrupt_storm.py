"""A client whose main thread is interrupted again and again, by real signals, loses nothing of anybody."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_hundreds_of_interrupts_lose_no_call_no_send_and_no_future_of_another_thread():
    storm = [sys.executable, "-m", "tests.integration.interrupt_storm", "300"]
    done = subprocess.run(storm, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    runs = [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines()]
    assert len(runs) == 2
    for seen in runs:
        assert seen["interrupts"] == 300
        assert seen["futures"] > 0
        assert [name for name in seen if name.endswith("lost")] == []
