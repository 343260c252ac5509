"""README.md from top to bottom, in an environment made by its own lines."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.doc_examples import ROOT, all_blocks
from tests.integration.installation import Environment, copy_of_the_sources
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)
BLOCKS = all_blocks("README.md")
FREE_PORTS = "--port 0 --zookeeper-port 0"
HERE = "127.0.0.1:2181"
"""Where the README has its ZooKeeper."""


def lines(heading: str) -> list[str]:
    """The commands below a heading, without the comments behind them."""
    found = [line for block in BLOCKS if block[:2] == (heading, "sh") for line in block.body.splitlines()]
    return [re.split(r" +#", line)[0] for line in found]


def program(heading: str) -> str:
    (found,) = [block.body for block in BLOCKS if block[:2] == (heading, "python")]
    return found


def test_these_are_all_snippets():
    assert [block[:2] for block in BLOCKS] == [
        ("In sixty seconds", "sh"),
        ("In sixty seconds", "sh"),
        ("In sixty seconds", "python"),
        ("In sixty seconds", "sh"),
        ("Try it", "sh"),
        ("Install", "sh"),
        ("A cluster on your machine", "sh"),
        ("A cluster on your machine", "sh"),
        ("From Python", "python"),
        ("From Spark", "python"),
    ]


def test_make_demo_is_the_demo_that_has_tests_of_its_own():
    assert lines("Try it") == ["make demo"]
    told = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines()[-1] == ".venv/bin/metaq demo --install-spark"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Made by the last line below Install, which finds the libraries that are here already."""
    directory = tmp_path_factory.mktemp("readme")
    environment = Environment(directory / "venv", libraries=True)
    _without_spark, install = lines("Install")
    environment.succeed(f"{install} --quiet", cwd=copy_of_the_sources(directory / "sources"))
    return environment


def installed_bytes(home: Path) -> int:
    """Of the libraries, without pip, setuptools and what Python compiles."""
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    (libraries,) = home.glob("lib/python*/site-packages")
    kept = [each for each in libraries.iterdir() if not each.name.startswith(tools)]
    found = (path for each in kept for path in (each.rglob("*") if each.is_dir() else [each]))
    return sum(path.stat().st_size for path in found if path.is_file() and path.suffix != ".pyc")


def test_sixty_seconds_need_nothing_but_python(tmp_path):
    environment = Environment(tmp_path / "venv")
    install, up, export, *commands, extra, up_secure = lines("In sixty seconds")
    assert install == lines("Install")[0] == "pip install ."
    assert export == f"export METAQ_ZK={HERE}"
    sources = copy_of_the_sources(tmp_path / "sources")  # and a reader stays in this directory
    environment.succeed(f"{install} --quiet", cwd=sources)
    assert installed_bytes(tmp_path / "venv") < 115e6
    no_java = {"JAVA_HOME": str(tmp_path), "PATH": f"{tmp_path / 'venv' / 'bin'}:/bin"}
    log = tmp_path / "up.log"
    with environment.serve(f"{up} {FREE_PORTS}", log, "metaq topics list", cwd=sources, **no_java) as server:
        (zookeeper,) = re.findall(r"zookeeper serves at (\S+);", server.log.read_text())
        assert f"export METAQ_ZK={zookeeper}\n" in server.log.read_text()
        printed = [environment.succeed(command, cwd=sources, METAQ_ZK=zookeeper) for command in commands]
        assert printed[-1] == "hello\n"
        script = sources / "example.py"
        script.write_text(program("In sixty seconds").replace(HERE, zookeeper))
        with environment.serve(f"python {script}", tmp_path / "example.log", "from Python", cwd=sources) as example:
            assert sorted(example.log.read_text().split("\n")) == ["", "b'from Python'", "b'hello'"]
    environment.succeed(f"{extra} --quiet", cwd=sources)
    with environment.serve(f"{up_secure} {FREE_PORTS}", tmp_path / "secure.log", "payload)", cwd=sources) as server:
        (admin,) = re.findall(r"METAQ_PROFILE=(\S+)", server.log.read_text().splitlines()[3])
        assert admin == str(sources / "secure-data" / "security" / "admin.ini")
        (zookeeper,) = re.findall(r"zookeeper serves at (\S+);", server.log.read_text())
        ran = environment.run("metaq stats", cwd=sources, METAQ_ZK=zookeeper)
        assert (ran.code, "speaks TLS: add a section [zookeeper]" in ran.output) == (1, True), ran.output
        environment.succeed("metaq stats", cwd=sources, METAQ_ZK=zookeeper, METAQ_PROFILE=admin)


def test_a_cluster_and_its_users_in_python_and_spark(environment, tmp_path):
    up, export, *commands = lines("A cluster on your machine")
    assert export == f"export METAQ_ZK={HERE}"
    with environment.serve(f"{up} {FREE_PORTS}", tmp_path / "up.log", "zookeeper serves", cwd=tmp_path) as server:
        (zookeeper,) = re.findall(r"zookeeper serves at (\S+);", server.log.read_text())
        printed = {command: environment.succeed(command, cwd=tmp_path, METAQ_ZK=zookeeper) for command in commands}
        assert len(printed) == 6
        consumed = next(text for command, text in printed.items() if command.startswith("metaq consume"))
        assert set(map(str, range(1, 1001))) <= set(consumed.split())
        assert "orders" in printed["metaq topics list"]
        assert "readers" in printed["metaq groups list"]

        script = tmp_path / "example.py"
        script.write_text(program("From Python").replace(HERE, zookeeper))
        log = tmp_path / "example.log"
        with environment.serve(f"python {script}", log, "b'payload'", cwd=tmp_path):  # it consumes until it is ended
            eventually(lambda: len(log.read_text().splitlines()) == 6)
        sent, *received = log.read_text().splitlines()
        assert re.fullmatch(r"\d+ \S+ \d+", sent)
        payloads = sorted(re.sub(r"^\S+ \d+ ", "", line) for line in received)
        assert payloads == ["b'a'", "b'b'", "b'payload'", "b'payload'", "b'payload'"]

        script.write_text(program("From Spark").replace(HERE, zookeeper))
        shown = environment.succeed(f"python {script}", cwd=tmp_path)
        counts = re.findall(r"^\| +(\d) *\| +(\d+) *\|$", shown, re.MULTILINE)
        assert {number for number, _count in counts} <= set("0123"), shown
        assert sum(int(count) for _number, count in counts) == 1005
        copied = environment.succeed("metaq consume --topic copies", cwd=tmp_path, METAQ_ZK=zookeeper).split()
        assert sorted(copied) == sorted([*map(str, range(1, 1001)), "a", "b", "payload", "payload", "payload"])
