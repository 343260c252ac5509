"""A real ZooKeeper server for all integration tests, and a fresh tree in it for each."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from bench.javapeer import JavaBroker
from metaq import Producer
from metaq.coordination.embedded import QUICK_JVM_OPTIONS
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.cli_helpers import Operator, Up, start_up, stop
from tests.integration.client_cluster import Brokers, running_brokers
from tests.integration.coordination_helpers import make_chroot, session_at
from tests.integration.disks import small_disk
from tests.integration.forked_processes import spark_python, stop_forked
from tests.integration.installation import build_distributions
from tests.integration.java_peers import require_java
from tests.integration.java_sides import KINDS, Side, running_side
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.integration.spark_home import quick_spark
from tests.processor_time import seconds
from tests.zookeepers import zookeeper_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadFileScheduling

_numbers = count()

QUICK = {
    "JDK_JAVA_OPTIONS": " ".join(QUICK_JVM_OPTIONS),  # Spark's JVMs and those of 1.x clients, too
    "PIP_COMPILE": "0",  # of what is installed, the tests import a part
    "OPENBLAS_NUM_THREADS": "1",  # NumPy starts a thread for each processor, which spins, and nothing here multiplies
}
"""Thousands of processes are started, none of which runs for long: this spares a quarter of what their starts cost."""

# whoever starts the tests in the background may have these ignored, and every process started here would inherit that:
# Java does not handle a hang-up then, and nothing ends by Ctrl-C
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


ONE_JVM = frozenset(
    {
        "test_combinations",
        "test_moves_spark",
        "test_spark_brokers",
        "test_spark_docs",
        "test_spark_job",
        "test_spark_pipeline",
        "test_spark_sets",
        "test_spark_streams",
        "test_spark_topics",
        "test_where_commands",
    }
)
"""The files whose tests have the fixture `spark`. Its JVM lives as long as the process of the tests, and needs 20 s of
the processor until it has compiled what it runs: one process of the tests runs all of these files."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "LoadFileScheduling | None":
    """Files as `--dist loadfile` has them, but those of ONE_JVM as one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "spark" if Path(file).stem in ONE_JVM else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest begin first: one that begins last would be waited for alone."""
    took = seconds()
    together = sum(took.get(file, 0.0) for file in ONE_JVM)

    def place(item: pytest.Item) -> tuple[float, str]:
        file = item.path.stem
        return -(together if file in ONE_JVM else took.get(file, 0.0)), file

    items.sort(key=place)
    for item in items:
        wanted = "spark" in getattr(item, "fixturenames", ())
        assert not wanted or item.path.stem in ONE_JVM, f"{item.path.name} uses `spark`: name it in ONE_JVM"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A server on a free port; `.connect_string`. Ticks of 100 ms: sessions may expire after 0.2 s."""
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with zookeeper_process(directory, tick_time_ms=100) as server:
        yield server


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with metaq's sdist and the wheel made from it: those that `make test` has built, else new ones."""
    if "METAQ_DIST" in os.environ:
        return Path(os.environ["METAQ_DIST"])
    directory = tmp_path_factory.mktemp("distributions")
    build_distributions(directory)
    return directory


@pytest.fixture(scope="session", autouse=True)
def quick_processes() -> Iterator[None]:
    """The environment of every process that a test starts: QUICK."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in QUICK.items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    yield
    stop_forked()


@pytest.fixture(scope="session", autouse=True)
def spark_home(request: pytest.FixtureRequest) -> Iterator[None]:
    """The environment of all Sparks of the tests."""
    wanted = any("spark" in item.path.stem for item in request.session.items)
    with quick_spark(archive=wanted) as variables, pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        yield


@pytest.fixture
def chroot(zookeeper: ZooKeeperProcess) -> str:
    """Connect string with a chroot of this test's own."""
    return make_chroot(f"{zookeeper.connect_string}/test-{next(_numbers)}")


@pytest.fixture
def operator(chroot: str) -> Operator:
    return Operator(chroot)


@pytest.fixture
def session(chroot: str) -> Iterator[ZkSession]:
    with session_at(chroot) as session:
        yield session


@pytest.fixture
def brokers(request: pytest.FixtureRequest, chroot: str, tmp_path: Path) -> Iterator[Brokers]:
    """One broker with the module's TOPICS: partitions by topic; by default two of `t`. A test may start more."""
    with running_brokers(chroot, tmp_path, getattr(request.module, "TOPICS", {"t": 2})) as brokers:
        yield brokers


@pytest.fixture
def nodes(request: pytest.FixtureRequest, chroot: str, tmp_path: Path) -> Iterator[SetNodes]:
    """A broker set of two nodes in sync, "a" and "b", with the module's SET_TOPICS: lines of its section by topic; by
    default four partitions of `t`. SET_SETTINGS are more arguments of set_nodes()."""
    topics = getattr(request.module, "SET_TOPICS", {"t": "numPartitions=4"})
    with set_nodes(tmp_path, chroot, topics, **getattr(request.module, "SET_SETTINGS", {})) as nodes:
        nodes.start("a", "b")
        nodes.wait_in_sync("a", "b")
        yield nodes


@pytest.fixture
def sets(request: pytest.FixtureRequest, chroot: str, tmp_path: Path) -> Iterator[tuple[SetNodes, SetNodes]]:
    """Broker sets 0, of the nodes "a" and "b", and 1, of "c" and "d", in sync, with the module's SET_TOPICS."""
    with ExitStack() as stack:
        found = []
        for broker_id, names in enumerate(("ab", "cd")):
            directory = tmp_path / f"set-{broker_id}"
            directory.mkdir()
            nodes = stack.enter_context(set_nodes(directory, chroot, request.module.SET_TOPICS, broker_id=broker_id))
            nodes.start(*names)
            nodes.wait_in_sync(*names)
            found.append(nodes)
        yield found[0], found[1]


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of the module's DISK_MB."""
    with small_disk(tmp_path / "disk", request.module.DISK_MB) as path:
        yield path


@pytest.fixture
def producer(brokers: Brokers) -> Iterator[Producer]:
    with Producer(brokers.connect) as producer:
        yield producer


class OneServer(NamedTuple):
    """A broker of either kind. data: its directory; connect: the ZooKeeper that it is registered at."""

    port: int
    data: Path
    connect: str


@pytest.fixture(scope="module", params=["ours", "java"])
def server(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OneServer]:
    """A broker of either kind with the module's TOPICS. JAVA_SETTINGS are those of the Java broker alone."""
    connect = make_chroot(f"{zookeeper.connect_string}/test-{next(_numbers)}")
    directory, topics = tmp_path_factory.mktemp(request.param), request.module.TOPICS
    if request.param == "ours":
        with running_brokers(connect, directory, topics) as brokers:
            yield OneServer(brokers.running[0].port, directory / "broker-0" / "data", connect)
        return
    require_java()
    settings = {"unflushThreshold": 1} | getattr(request.module, "JAVA_SETTINGS", {})
    with JavaBroker(directory / "java", connect, topics, settings) as broker:
        yield OneServer(broker.port, broker.data, connect)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`metaq up` with the module's TOPICS, as the command has them, and OPTIONS."""
    options = (*request.module.OPTIONS, "--session-timeout", "20")
    up = start_up(tmp_path_factory.mktemp("up"), request.module.TOPICS, *options)
    yield up
    assert stop(up.process) == 0


@pytest.fixture(scope="module", params=KINDS)
def side(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Side]:
    """A broker of either kind, configured by the module's TOPICS and SYSTEM, and an application of the Java client."""
    require_java()
    connect = f"{zookeeper.connect_string}/test-{next(_numbers)}"
    directory = tmp_path_factory.mktemp(request.param) / "side"
    system = getattr(request.module, "SYSTEM", None)
    with running_side(request.param, connect, directory, request.module.TOPICS, system) as running:
        yield running


@pytest.fixture(scope="module")
def ours(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Side]:
    """As `side`, our broker alone. FILTERS: source of its module acme_filters; FILTERS_INI: its filters.ini."""
    require_java()
    directory = tmp_path_factory.mktemp("ours")
    modules, conf = directory / "modules", directory / "side" / "conf" / "ours"
    for each in (modules, conf):
        each.mkdir(parents=True)
    (modules / "acme_filters.py").write_text(getattr(request.module, "FILTERS", ""))
    (conf / "filters.ini").write_text(getattr(request.module, "FILTERS_INI", "[filters]\n"))
    connect = f"{zookeeper.connect_string}/test-{next(_numbers)}"
    with running_side("ours", connect, directory / "side", request.module.TOPICS, {"appClassPath": modules}) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    """Spark in this process, with format("metaq"); two tasks at once."""
    from pyspark.sql import SparkSession

    from metaq.spark_connector import register

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", spark_python())
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()
