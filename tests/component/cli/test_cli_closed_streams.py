"""A caller that has closed stdin, stdout or stderr: nothing of a command is lost, and there is no traceback."""

import subprocess
import sys

import pytest

METAQ = f"{sys.executable} -m metaq"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"{METAQ} produce --zk 127.0.0.1:1 --topic t <&-", 2, "stdin is closed: name a FILE"),
        (f"{METAQ} --help >&-", 0, ""),
        (f"{METAQ} nowhere 2>&-", 2, ""),
        (f"{METAQ} --version <&- >&- 2>&-", 0, ""),
    ],
)
def test_closed_streams_are_no_traceback(command, code, said):
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == code
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
