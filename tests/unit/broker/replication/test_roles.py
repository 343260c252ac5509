"""What may be combined with a node of a broker set."""

from dataclasses import replace
from pathlib import Path

import pytest

from metaq.broker.configuration.server_ini import parse_config
from metaq.broker.configuration.settings import BrokerConfig
from metaq.broker.replication.plugins import MetaslavePlugin, Plugins, SamsaPlugin
from metaq.broker.replication.roles import check_roles
from metaq.protocol.errors import ConfigError


def config(data: Path, zookeeper: str = "", node: str | None = None) -> BrokerConfig:
    text = (
        "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=1\nmaxSegmentSize=1024\n"
        f"maxTransferSize=1024\ndataPath={data}\n[zookeeper]\n{zookeeper}\n[topic=t]\n"
    )
    return replace(parse_config(text.encode()), node=node)


@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        (Plugins(metaslave=MetaslavePlugin(1, "g", 500, False)), ["asynchronous slave", "-Fmetaslave"]),
        (Plugins(samsa=SamsaPlugin("127.0.0.1", 1, False, 1, 1, 1)), ["synchronous slave", "-Fsamsa"]),
        (Plugins(gregor=True), ["synchronous slave", "-Fgregor"]),
    ],
)
def test_a_node_has_no_role_of_1_x(tmp_path, plugins, words):
    check_roles(plugins, config(tmp_path))
    with pytest.raises(ConfigError, match=r"node=a: ") as refused:
        check_roles(plugins, config(tmp_path, node="a"))
    assert all(word in str(refused.value) for word in words)


def test_a_node_may_have_a_gateway_and_needs_zookeeper(tmp_path):
    check_roles(Plugins(gateway_port=0), config(tmp_path, node="a"))
    with pytest.raises(ConfigError, match=r"node=a: .*set zk\.zkEnable to true"):
        check_roles(Plugins(), config(tmp_path, "zk.zkEnable=false", node="a"))


def test_the_directory_of_a_node_is_not_served_by_a_broker_by_itself(tmp_path):
    (tmp_path / "metaqset").mkdir()
    check_roles(Plugins(), config(tmp_path, node="a"))
    with pytest.raises(ConfigError, match=r"dataPath=.*start it with --node, or remove .*metaqset"):
        check_roles(Plugins(), config(tmp_path))
