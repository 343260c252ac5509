"""The -F options' files: what is read, and what is refused by name."""

from pathlib import Path

import pytest

from metaq.broker.replication.plugins import MetaslavePlugin, SamsaPlugin, parse_properties, read_plugins
from metaq.protocol.errors import ConfigError


def values(text: str) -> dict[str, str]:
    return {name: found.value for name, found in parse_properties(text.encode("iso-8859-1")).items()}


def test_properties_are_read_as_java_reads_them():
    text = "# c\n! c\n\na=1\n b : 2\r\nc 3\nd\ne=\\\n  x,\\\n  y\nf\\=g=h\\u0041\\t.\na=again"
    assert values(text) == {"a": "again", "b": "2", "c": "3", "d": "", "e": "x,y", "f=g": "hA\t."}


def test_lines_ending_in_an_even_number_of_backslashes_are_not_continued():
    assert values("a=b\\\\\nc=d") == {"a": "b\\", "c": "d"}


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plugin.properties"
    path.write_text(text)
    return str(path)


def test_a_slave_has_the_defaults_of_1x(tmp_path: Path):
    plugins = read_plugins({"metaslave": file(tmp_path, "slaveId=3\nslaveGroup=\n")})
    assert plugins.metaslave == MetaslavePlugin(3, "meta-slave-group_3", 500, False)
    assert plugins.samsa is None
    assert not plugins.gregor


def test_every_key_of_a_slave(tmp_path: Path):
    text = "slaveId=0\nslaveGroup=g\nslaveMaxDelayInMills=20\nautoSyncMasterConfig=true"
    assert read_plugins({"metaslave": file(tmp_path, text)}).metaslave == MetaslavePlugin(0, "g", 20, True)


def test_every_key_of_a_synchronous_master(tmp_path: Path):
    text = (
        "slave=[::1]:8124\ncallbackThreadCount=4\nrecoverOffset=true\nsendToSlaveTimeoutInMills=1\n"
        "slaveContinuousFailureThreshold=2\ncheckSlaveIntervalInMills=3\nrecoverParallel=false\nrecoverParallelHint=9\n"
    )
    assert read_plugins({"samsa": file(tmp_path, text)}).samsa == SamsaPlugin("::1", 8124, True, 1, 2, 3)


def test_a_synchronous_master_has_the_defaults_of_1x(tmp_path: Path):
    assert read_plugins({"samsa": file(tmp_path, "slave=h:1")}).samsa == SamsaPlugin("h", 1, False, 2000, 100, 100)


def test_a_synchronous_slave_has_no_keys(tmp_path: Path):
    assert read_plugins({"gregor": file(tmp_path, "# nothing")}).gregor


def test_a_slave_is_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = file(tmp_path, "slaveId=1")
    plugins = read_plugins({"gregor": path, "metaslave": path})
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
def test_what_is_wrong_is_named(tmp_path: Path, plugin: str, text: str, said: str):
    with pytest.raises(ConfigError, match=said):
        read_plugins({plugin: file(tmp_path, text)})


def test_the_gateway_listens_on_8080_unless_told_otherwise(tmp_path: Path):
    assert read_plugins({}).gateway_port is None
    assert read_plugins({"jettyBroker": file(tmp_path, "")}).gateway_port == 8080
    assert read_plugins({"jettyBroker": file(tmp_path, "serverPort=0")}).gateway_port == 0


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        read_plugins({"gregor": str(tmp_path / "nowhere")})


def test_master_and_slave_at_once_are_refused(tmp_path: Path):
    path = file(tmp_path, "slave=h:1")
    with pytest.raises(ConfigError, match="excludes"):
        read_plugins({"samsa": path, "gregor": path})
