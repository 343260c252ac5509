"""metaq as it is installed: from the wheel in `make test`, in place in `make integration`."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.broker_process import server_ini
from tests.integration.doc_examples import ROOT
from tests.integration.installation import Environment

pytestmark = pytest.mark.timeout(900)
FOLDERS = ("protocol", "coordination", "broker", "client", "spark_connector")
PACKAGES = sysconfig.get_path("purelib")
IMPORT_ALL = """
import importlib, json, sys
found, failed = {}, {}
for name in json.load(sys.stdin):
    try:
        found[name] = importlib.import_module(name).__file__
    except ImportError as error:
        failed[name] = error.name
print(json.dumps([found, failed]))
"""
WHERE = "import metaq, metaq.broker.main; print(metaq.__file__); print(metaq.broker.main.__file__)"


def sources() -> set[str]:
    """The files that the wheel must have, by their names in it."""
    tops = {ROOT / folder: f"metaq/{folder}" for folder in FOLDERS} | {ROOT / "metaq": "metaq"}
    return {
        f"{installed}/{path.relative_to(top)}"
        for top, installed in tops.items()
        for path in top.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def modules(wheel: Path) -> list[str]:
    """Every module that is in the wheel."""
    with zipfile.ZipFile(wheel) as content:
        names = [Path(name) for name in content.namelist() if name.endswith(".py")]
    return [".".join(path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts) for path in names]


def import_all(python: str, wheel: Path, cwd: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Import each module in a fresh process: (name -> file), (name -> the missing module)."""
    command = [python, "-c", IMPORT_ALL]
    wanted = json.dumps(modules(wheel))
    ran = subprocess.run(command, input=wanted, capture_output=True, text=True, cwd=cwd, check=False)
    assert ran.returncode == 0, ran.stderr
    found, failed = json.loads(ran.stdout.splitlines()[-1])
    return found, failed


def is_editable() -> bool:
    """Whether metaq is installed in place. The checkout's metaq.egg-info is no installation, and it does not say."""
    (installed,) = metadata.distributions(name="metaq", path=[PACKAGES])
    said = json.loads(installed.read_text("direct_url.json") or "{}")
    return bool(said.get("dir_info", {}).get("editable"))


def test_metaq_comes_from_the_installation_in_every_process(tmp_path):
    if "METAQ_DIST" in os.environ:  # `make test` says that this is the environment of the wheel
        assert not is_editable()
    packages = Path(PACKAGES, "metaq")
    expected = [ROOT / "metaq", ROOT / "broker"] if is_editable() else [packages, packages / "broker"]
    here = [sys.modules["metaq"].__file__, *subprocess.check_output([sys.executable, "-c", WHERE]).decode().split()]
    for cwd in (ROOT, tmp_path):
        here += subprocess.check_output([sys.executable, "-c", WHERE], cwd=cwd).decode().split()
    found = [Path(file or "").parent for file in here]
    assert found == [expected[0], *expected * 3]
    script = Path(sys.executable).with_name("metaq")
    assert script.read_text().startswith(f"#!{sys.executable}\n")


def test_the_wheel_and_the_sdist_have_every_source(distributions):
    (wheel,), (sdist,) = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as content:
        assert {name for name in content.namelist() if ".dist-info/" not in name} == sources()
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {name.removeprefix("metaq/") if name.split("/")[1] in FOLDERS else name for name in sources()}
    assert wanted | {"pyproject.toml", "README.md", "LICENSE"} <= held
    assert not any(name.startswith(("tests", "bench")) for name in held)


def test_every_module_can_be_imported_away_from_the_sources(distributions, tmp_path):
    (wheel,) = distributions.glob("*.whl")
    found, failed = import_all(sys.executable, wheel, tmp_path)
    assert failed == {}
    assert len(found) >= 250
    top = ROOT if is_editable() else Path(PACKAGES)
    assert all(Path(file).is_relative_to(top) for file in found.values())


@pytest.fixture(scope="module")
def plain(distributions, tmp_path_factory):
    """A fresh environment with the wheel and what it says it needs, but none of the extras."""
    environment = Environment(tmp_path_factory.mktemp("plain") / "venv")
    (wheel,) = distributions.glob("*.whl")
    environment.succeed(f"pip install --quiet {wheel}")
    return environment


def test_only_what_an_extra_brings_is_missing_without_extras(plain, distributions):
    (wheel,) = distributions.glob("*.whl")
    found, failed = import_all(plain.python, wheel, plain.home)
    assert set(failed.values()) <= {"pyspark", "pyarrow", "pandas", "cryptography", "pytest"}
    homes = (
        *("metaq.spark_connector", "metaq.cli.demo.", "metaq.cli.authority", "metaq.client.records.arrow"),
        "metaq.testing.plugin",  # only pytest itself loads it
    )
    assert [name for name in failed if not name.startswith(homes)] == []
    assert {"metaq.broker.main", "metaq.cli.up", "metaq.client.producer", "metaq.client.consumer"} <= found.keys()


def test_a_broker_serves_producers_and_consumers_without_extras(plain, chroot, tmp_path):
    ini = server_ini(tmp_path / "data", {"orders": "numPartitions=2"}, zookeeper=f"zk.zkConnect={chroot}")
    (tmp_path / "server.ini").write_text(ini)
    with plain.serve(f"metaq broker -f {tmp_path}/server.ini", tmp_path / "broker.log", " serving "):
        plain.succeed("seq 100 | metaq produce --topic orders", METAQ_ZK=chroot)
        printed = plain.succeed("metaq consume --topic orders --group g --count 100 --timeout 60", METAQ_ZK=chroot)
    assert sorted(map(int, printed.split()[:100])) == list(range(1, 101))


def test_what_needs_an_extra_says_in_one_sentence_what_to_install_and_that_works(plain, tmp_path):
    commands = ("metaq demo", "metaq-spark writers")
    for needs in [plain.run(command, cwd=tmp_path) for command in commands]:
        assert (needs.code, needs.output.count("\n")) == (1, 1), needs.output
        (install,) = re.findall(r"pip install '.*?'", needs.output)
    plain.add_libraries()
    plain.succeed(install, PIP_NO_INDEX="1")  # finds metaq installed, and here the libraries too
    assert "pip install" not in plain.run(commands[-1], cwd=tmp_path).output


USER = """
from metaq import Producer

with Producer("127.0.0.1:2181") as producer:
    reveal_type(producer.send("orders", b"x").offset)
    producer.send(7, b"x")
"""


def test_mypy_finds_the_types_of_an_installation_in_place(distributions, tmp_path):
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (checkout,) = tmp_path.glob("metaq-*")
    environment = Environment(tmp_path / "venv", pip=False, libraries=True)
    in_place = "install --quiet --no-deps --no-build-isolation --config-settings editable_mode=strict -e"
    environment.succeed(f"{sys.executable} -m pip --python {environment.python} {in_place} {checkout}")
    (tmp_path / "user.py").write_text(USER)
    ran = environment.run(f"{sys.executable} -m mypy --strict --python-executable {environment.python} user.py")
    assert 'Revealed type is "int"' in ran.output, ran.output
    assert 'Argument 1 to "send" of "Producer" has incompatible type "int"' in ran.output
    assert "Found 1 error in 1 file" in ran.output
