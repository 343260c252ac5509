"""The -F options' files: what is read, and what is refused by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from metaq.broker.replication.plugins import MetaslavePlugin, Plugins, SamsaPlugin, parse_properties, read_plugins
from metaq.protocol.errors import ConfigError


def values(text: str) -> dict[str, str]:
    return {name: found.value for name, found in parse_properties(text.encode("iso-8859-1")).items()}


def test_properties_are_read_as_java_reads_them():
    text = "# c\n! c\n\na=1\n b : 2\r\nc 3\nd\ne=\\\n  x,\\\n  y\nf\\=g=h\\u0041\\t.\na=again"
    assert values(text) == {"a": "again", "b": "2", "c": "3", "d": "", "e": "x,y", "f=g": "hA\t."}


def test_lines_ending_in_an_even_number_of_backslashes_are_not_continued():
    assert values("a=b\\\\\nc=d") == {"a": "b\\", "c": "d"}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Plugins]:
    """By the text of each plugin's file."""

    def plugins(**texts: str) -> Plugins:
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        return read_plugins({name: str(tmp_path / name) for name in texts})

    return plugins


EVERY_KEY = (
    "slave=[::1]:8124\ncallbackThreadCount=4\nrecoverOffset=true\nsendToSlaveTimeoutInMills=1\n"
    "slaveContinuousFailureThreshold=2\ncheckSlaveIntervalInMills=3\nrecoverParallel=false\nrecoverParallelHint=9\n"
)


@pytest.mark.parametrize(
    ("plugin", "text", "found"),
    [
        ("metaslave", "slaveId=3\nslaveGroup=\n", MetaslavePlugin(3, "meta-slave-group_3", 500, False)),
        (
            "metaslave",
            "slaveId=0\nslaveGroup=g\nslaveMaxDelayInMills=20\nautoSyncMasterConfig=true",
            MetaslavePlugin(0, "g", 20, True),
        ),
        ("samsa", "slave=h:1", SamsaPlugin("h", 1, False, 2000, 100, 100)),
        ("samsa", EVERY_KEY, SamsaPlugin("::1", 8124, True, 1, 2, 3)),
        ("gregor", "# nothing", True),
    ],
    ids=["slave, defaults of 1.x", "slave, every key", "synchronous master, defaults", "its every key", "its slave"],
)
def test_a_role_is_read_with_its_keys_and_the_defaults_of_1x_and_no_other_role(read, plugin, text, found):
    roles = {"metaslave": None, "samsa": None, "gregor": False} | {plugin: found}
    plugins = read(**{plugin: text})
    assert {name: getattr(plugins, name) for name in roles} == roles


def test_a_slave_is_nothing_else(read, caplog: pytest.LogCaptureFixture):
    plugins = read(gregor="slaveId=1", metaslave="slaveId=1")
    assert plugins.metaslave is not None
    assert not plugins.gregor
    assert "ignoring -Fgregor" in caplog.text


@pytest.mark.parametrize(
    ("plugin", "text", "said"),
    [
        ("metaslave", "slaveID=1", "did you mean slaveId"),
        ("metaslave", "", "slaveId"),
        ("metaslave", "slaveId=-1", "0 …"),
        ("metaslave", "slaveId=1\nautoSyncMasterConfig=yes", "true or false"),
        ("metaslave", "slaveId=1\nslaveGroup=a b", "forbids"),
        ("samsa", "", "slave"),
        ("samsa", "slave=host", "host:port"),
        ("samsa", "slave=host:70000", "host:port"),
        ("samsa", "slave=h:1\nqwxyz=1", "known keys"),
        ("gregor", "slave=h:1", "has no keys"),
        ("gregory", "", "did you mean gregor"),
        ("jettyBroker", "serverPort=70000", "65535"),
        ("jettyBroker", "serverport=1", "did you mean serverPort"),
    ],
)
def test_what_is_wrong_is_named(read, plugin: str, text: str, said: str):
    with pytest.raises(ConfigError, match=said):
        read(**{plugin: text})


def test_the_gateway_listens_on_8080_unless_told_otherwise(read):
    ports = [read(**more).gateway_port for more in ({}, {"jettyBroker": ""}, {"jettyBroker": "serverPort=0"})]
    assert ports == [None, 8080, 0]


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        read_plugins({"gregor": str(tmp_path / "nowhere")})


def test_master_and_slave_at_once_are_refused(read):
    with pytest.raises(ConfigError, match="excludes"):
        read(samsa="slave=h:1", gregor="slave=h:1")
