"""The examples of docs/messages.md, from top to bottom, section by section, on a real cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.client_cluster import running_brokers
from tests.integration.doc_examples import all_blocks, matches
from tests.waiting import DEADLINE

PAGE = "docs/messages.md"
SECTIONS = {"An e-mail service that survives its provider": {"emails": 2}}
"""The headings with examples, and the topics that each needs."""


def test_all_examples_of_the_page_are_run():
    found = {block.heading for block in all_blocks(PAGE) if block.language in ("python", "console")}
    assert found == set(SECTIONS)


@pytest.mark.parametrize("heading", SECTIONS)
def test_an_example_does_what_it_says(heading, chroot, tmp_path):
    names: dict[str, object] = {}
    env = {**os.environ, "METAQ_ZK": chroot, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with running_brokers(chroot, tmp_path, SECTIONS[heading]):
        for block in all_blocks(PAGE):
            if block.heading != heading:
                continue
            if block.language == "python":
                source = block.body.replace("localhost:2181", chroot)
                exec(compile(source, f"{PAGE}, {heading}", "exec"), names)
                continue
            for part in block.body.split("$ ")[1:]:
                command, _, shown = part.partition("\n")
                ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=DEADLINE)
                assert matches(shown, ran.stdout + ran.stderr), f"$ {command}\n{ran.stdout}{ran.stderr}"
