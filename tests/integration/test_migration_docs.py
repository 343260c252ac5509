"""The commands of docs/migrating.md, run on a Java broker's place before and after ours takes over in it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import Server
from tests.integration.doc_examples import ROOT, blocks, console_examples, matches
from tests.integration.java_peers import require_java
from tests.soak.members import Group, JavaConsumer, JavaProducer
from tests.soak.places import Place
from tests.soak.run import Run
from tests.waiting import DEADLINE

PAGE = "migrating.md"


@pytest.fixture
def place(chroot: str, tmp_path: Path) -> Iterator[Place]:
    require_java()
    place = Place(tmp_path / "broker", chroot, {"t": 3})
    yield place
    place.kill()


def our_broker_commands() -> list[list[str]]:
    """The lines that start a broker of ours without a plugin, as words."""
    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("metaq broker") and "-F" not in line]


def test_the_commands_of_the_page_do_what_it_says(place: Place, chroot: str, tmp_path: Path) -> None:
    group = Group(chroot, "readers", "t", tmp_path / "group")
    place.start("java")
    with Run(group, [JavaConsumer(group, "consumer")]) as run:
        run.produce(JavaProducer(group, 0.01))
        run.wait_for(50)
        run_examples(chroot, place.directory)
        place.stop()
        _, *words = our_broker_commands()[0]
        command = [sys.executable, "-m", "metaq", *words]
        with Server(command, place.directory / "page.log", f":{place.port} ", place.directory):
            run.wait_for(50)
            run_examples(chroot, place.directory)
            assert not {each.kind for each in run.finish().problems} & {"lost", "unseen"}


def run_examples(chroot: str, directory: Path) -> None:
    env = {**os.environ, "METAQ_ZK": chroot, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    examples = list(console_examples(PAGE))
    assert len(examples) >= 2
    for command, shown in examples:
        ran = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=env, timeout=DEADLINE, cwd=directory
        )
        printed = ran.stdout + ran.stderr
        assert matches(shown, printed), f"$ {command}\n{printed}\n--- the page says:\n{shown}"


def test_every_road_of_the_page_has_its_test() -> None:
    text = (ROOT / "docs" / PAGE).read_text("utf-8")
    named = re.findall(r"`(test_migration_\w+\.py)`", text)
    assert len(named) >= 2
    assert all((ROOT / "tests" / "integration" / name).exists() for name in named)
