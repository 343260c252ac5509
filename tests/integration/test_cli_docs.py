"""Every example of docs/cli.md, run in order on one cluster."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE

from .cli_helpers import serving_up
from .doc_examples import blocks, console_examples, matches


def test_the_examples_of_the_page_print_what_it_says(tmp_path):
    (up_line,) = (block for block in blocks("cli.md", "sh") if "metaq up" in block)
    more = shlex.split(up_line)[2:]
    examples = list(console_examples("cli.md"))
    assert len(examples) >= 30
    with serving_up(tmp_path / "data", [], *more) as up:
        data = {"DATA": str(up.data_dir)}
        env = {**os.environ, **up.env, **data, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for command, shown in examples:
            ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=DEADLINE)
            printed = ran.stdout + ran.stderr
            assert matches(shown, printed), f"$ {command}\n{printed}\n--- the page says:\n{shown}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("sent … to x\n", "sent 5 messages to x\n", True),
        ("a\n…\nc\n", "a\nb\nb\nc   \n", True),
        ("a\n", "a\nb\n", False),
        ("", "anything", False),
    ],
)
def test_the_comparison_can_fail(shown, printed, same):
    assert matches(shown, printed) is same
