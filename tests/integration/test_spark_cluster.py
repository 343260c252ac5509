"""metaq-spark by spark-submit on a standalone cluster whose Pythons know metaq from the wheel in --py-files only."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.processes import Server
from metaq import Producer, browse

from .cli_helpers import serving_up
from .doc_examples import blocks
from .installation import Environment
from .spark_home import OPTIONS


def home() -> Path:
    return Path(os.environ["SPARK_HOME"])


SUBMIT_SECONDS = 280.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With a Python that has every library but not metaq."""
    python = Environment(tmp_path_factory.mktemp("python") / "venv", pip=False, libraries=True)
    missing = python.run("python -c 'import numpy, kazoo, metaq'")
    assert "No module named 'metaq'" in missing.output
    quick = os.environ[OPTIONS]
    return python.variables | {
        "PYSPARK_PYTHON": python.python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": quick,
        "SPARK_HOME": str(home()),
    }


@pytest.fixture(scope="module")
def wheel(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel under the name that Spark takes: it adds .zip and .egg files to the path, and no others."""
    (built,) = distributions.glob("*.whl")
    return Path(shutil.copy(built, tmp_path_factory.mktemp("wheel") / "metaq.zip"))


@pytest.fixture(scope="module")
def master(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a cluster of one worker with two cores, each for an executor: a second worker is another JVM to start."""
    directory = tmp_path_factory.mktemp("cluster")
    java = ["env", *(f"{name}={value}" for name, value in environment.items()), str(home() / "bin" / "spark-class")]
    with ExitStack() as stack:
        command = [*java, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        server = stack.enter_context(
            Server([*command, "--webui-port", "0"], directory / "master.log", "I have been elected leader")
        )
        (url,) = set(re.findall(r"spark://127\.0\.0\.1:\d+", server.log.read_text()))
        worker = [*java, "org.apache.spark.deploy.worker.Worker", "--cores", "2", "--memory", "2g", "--webui-port", "0"]
        command = [*worker, "--work-dir", str(directory / "worker"), url]
        stack.enter_context(Server(command, directory / "worker.log", "Successfully registered with master"))
        yield url


def submit(environment: dict[str, str], master: str, wheel: Path, directory: Path, *arguments: str) -> dict[str, int]:
    """The job's result."""
    (launcher,) = [block for block in blocks("spark.md", "python") if "spark_connector.job" in block]
    (directory / "job.py").write_text(launcher)
    command = [str(home() / "bin" / "spark-submit"), "--master", master, "--py-files", str(wheel)]
    command += ["--conf", f"spark.executor.extraJavaOptions={environment[OPTIONS]}"]
    command += [
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.executor.cores=1",
        "--conf",
        "spark.ui.enabled=false",
    ]
    command += ["--conf", "spark.log.level=WARN", "--conf", "spark.sql.shuffle.partitions=2"]
    command += [str(directory / "job.py"), *arguments]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(wheel)},  # for the driver, as the page says
        cwd=directory,
        timeout=SUBMIT_SECONDS,
        check=False,
    )
    said = "\n".join(line for line in ran.stderr.splitlines() if not line.startswith("\tat "))
    assert ran.returncode == 0, said[-5000:]
    result: dict[str, int] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


def test_a_topic_is_drained_to_parquet_and_back_on_a_standalone_cluster(
    environment: dict[str, str], master: str, wheel: Path, tmp_path: Path
) -> None:
    with serving_up(tmp_path / "data", ["trades:2", "back:2"], "--flush", "async") as up:
        with Producer(up.zookeeper) as producer:
            for number in range(100):
                producer.send("trades", f"{number:04d}".encode(), key=f"k{number % 7}", keys=[f"k{number % 7}"])
        where = ("--zookeeper", up.zookeeper)
        rows = str(tmp_path / "rows")
        drained = submit(environment, master, wheel, tmp_path, "drain", rows, "--topic", "trades", *where)
        assert drained["messages"] == 100
        days = {path.name for path in Path(rows).glob("day=*")}
        assert all(re.fullmatch(r"day=20\d\d-\d\d-\d\d", day) for day in days)
        assert days
        back = submit(environment, master, wheel, tmp_path, "restore", rows, "--topic", "back", *where)
        assert back["messages"] == 100
        by_key: dict[str, list[bytes]] = {}
        for message in browse(up.zookeeper, "back"):
            by_key.setdefault(message.keys[0], []).append(message.payload)
        assert by_key == {f"k{key}": [f"{number:04d}".encode() for number in range(key, 100, 7)] for key in range(7)}
