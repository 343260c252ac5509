"""The example of docs/messages.md about retries: its Python and its commands, from top to bottom, on a real cluster."""

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.client_cluster import running_brokers
from tests.integration.doc_examples import all_blocks, matches
from tests.waiting import DEADLINE

PAGE = "docs/messages.md"
HEADING = "An e-mail service that survives its provider"


def test_the_example_does_what_it_says(chroot, tmp_path):
    examples = [block for block in all_blocks(PAGE) if block.heading == HEADING]
    assert [block.language for block in examples].count("python") >= 4
    assert [block.language for block in examples].count("console") >= 2
    names: dict[str, object] = {}
    env = {**os.environ, "METAQ_ZK": chroot, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with running_brokers(chroot, tmp_path, {"emails": 2}):
        for block in examples:
            if block.language == "python":
                exec(compile(block.body.replace("localhost:2181", chroot), f"{PAGE}, {HEADING}", "exec"), names)
                continue
            for part in block.body.split("$ ")[1:]:
                command, _, shown = part.partition("\n")
                ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=DEADLINE)
                assert matches(shown, ran.stdout + ran.stderr), f"$ {command}\n{ran.stdout}{ran.stderr}"
