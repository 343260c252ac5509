"""autoSyncMasterConfig: the master's topics in the slave's own file."""

from metaq.broker.configuration.server_ini import parse_config
from metaq.broker.configuration.sources import ConfigTexts
from metaq.broker.replication.config_copy import with_topics_of
from tests.unit.broker.harness import INI

OWN = INI.format(data="/own", system="").encode()
MASTER = (
    b"; a comment\n[topic=first]\nnumPartitions=7\n dataPath = /master/data\n"
    b"[system]\nbrokerId=0\nserverPort=1\nnumPartitions=1\n[topic=second]\ngroup.g=a.B\n[zookeeper]\nzk.zkConnect=m\n"
)


def test_topics_are_the_masters_and_everything_else_is_the_slaves():
    config = parse_config(ConfigTexts(with_topics_of(MASTER, OWN)))
    own = parse_config(ConfigTexts(OWN))
    assert set(config.topics) == {"first", "second"}
    assert config.topics["first"].partitions == 7
    assert config.topics["first"].data_path == own.system.data_path
    assert (config.port, config.zookeeper, config.system) == (own.port, own.zookeeper, own.system)


def test_a_second_time_changes_nothing():
    once = with_topics_of(MASTER, OWN)
    assert with_topics_of(MASTER, once) == once
