"""server.ini as the Java broker reads it (storage.md §9)."""

from pathlib import Path

import pytest

from metaq.broker.configuration.ini import evaluate_int32, parse_ini
from metaq.broker.configuration.server_ini import SYSTEM_KEYS_WITHOUT_EFFECT, parse_config, read_config
from metaq.broker.configuration.settings import Promise
from metaq.broker.store.topic_config import Disposal
from metaq.coordination.runtime.local_address import local_address
from metaq.protocol.errors import ConfigError

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden" / "wire" / "server.ini"

SMALL = """[system]
brokerId=0
numPartitions=2
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1024*1024
maxTransferSize=1048576
{system}
[zookeeper]
{zookeeper}
{topics}
"""


def config(system="", zookeeper="", topics="[topic=t]"):
    return parse_config(SMALL.format(system=system, zookeeper=zookeeper, topics=topics).encode())


def error(**parts):
    with pytest.raises(ConfigError) as found:
        config(**parts)
    return str(found.value)


def test_the_recorded_brokers_file_is_read():
    found = read_config(str(GOLDEN))
    assert (found.broker_id, found.host, found.port) == (0, "127.0.0.1", 28423)
    assert (found.max_segment_size, found.max_transfer_size) == (1 << 30, 1 << 20)
    assert found.zookeeper.connect == "127.0.0.1:2181/spec4"
    assert found.zookeeper.sync_time_ms == 1000
    assert found.checksum == 2126273295  # recorded by `stats`
    partitions = {name: topic.partitions for name, topic in found.topics.items()}
    assert partitions == {"t3": 3, "java": 2, "nopub": 1, "nosub": 1, "lazy": 1, "empty": 1, "wild*": 2}
    assert found.topics["lazy"].unflush_threshold == 1000
    assert found.topics["t3"].unflush_threshold == 0
    assert (found.topics["nopub"].accept_publish, found.topics["nosub"].accept_subscribe) == (False, False)
    assert all(topic.stat for topic in found.topics.values())


def test_defaults_are_those_of_1_x():
    found = config()
    assert found.port == 8123
    assert found.host == local_address()
    assert found.system.data_path == str(Path("~/meta").expanduser())
    assert found.system.delete_policy.action is Disposal.DELETE
    assert found.system.delete_policy.max_age_s == 168 * 3600
    assert found.system.delete_when.text == "0 0 6,18 * * ?"
    assert not found.move_consumers_past_end
    assert (found.zookeeper.connect, found.zookeeper.root) == ("localhost:2181", "/meta")
    assert (found.zookeeper.session_timeout_ms, found.zookeeper.enabled) == (30_000, True)


def test_a_topic_inherits_what_it_does_not_set():
    found = config("stat=true\nacceptPublish=false\ndeletePolicy=archive,1h", "", "[topic=a]\n[topic=b]\nstat=FALSE")
    a, b = found.topics["a"], found.topics["b"]
    assert (a.stat, b.stat) == (True, False)
    assert a.delete_policy == b.delete_policy == found.system.delete_policy
    assert not b.accept_publish


def test_a_pattern_accepts_topics_with_the_systems_settings():
    found = config("", "", "[topic=wild*]\nnumPartitions=9\n[topic=a.b]")
    assert found.topic("wildcat") is found.system
    assert found.topic("wild") is found.system
    assert found.topic("mywild") is None
    assert found.topic("axb") is found.system  # the rest of a name is a regular expression too
    assert found.topic("a.b") is found.topics["a.b"]


SAID = {
    "stat of a topic in any case, and all else is false": (
        {"topics": "[topic=a]\nstat=TRUE\n[topic=b]\nstat=yes"},
        lambda found: [found.topics[name].stat for name in "ab"],
        [True, False],
    ),
    "counters for what any section with stat matches": (
        {
            "system": "stat=false",
            "topics": "[topic=wild*]\nstat=true\n[topic=wildcat]\n[topic=a]\nstat=true\n[topic=b]",
        },
        lambda found: [found.has_stat(name) for name in ("wildcat", "wildly", "a", "b", "c")],
        [True, True, True, False, False],
    ),
    "a section twice, and the last value wins and blank is not set": (
        {
            "system": "serverPort=1\nserverPort=2\nhostName=",
            "topics": "[system]\nserverPort = 3\n[topic=t]\nnumPartitions: 7",
        },
        lambda found: (found.port, found.topics["t"].partitions, found.host),
        (3, 7, local_address()),
    ),
    "no node and no zone": ({}, lambda found: (found.node, found.zone), (None, "")),
    "a node and its zone": (
        {"topics": "[replication]\nnode=a-1\nzone=eu\n[topic=t]"},
        lambda found: (found.node, found.zone),
        ("a-1", "eu"),
    ),
    "no rate of copies": ({"topics": "[replication]\n[topic=t]"}, lambda found: found.copy_bytes_per_second, 200 << 20),
    "the least rate of copies": (
        {"topics": "[replication]\ncopyBytesPerSecond=1024*1024\n[topic=t]"},
        lambda found: found.copy_bytes_per_second,
        1 << 20,
    ),
    "an IPv6 host in brackets": ({"system": "hostName=[::1]"}, lambda found: found.host, "::1"),
    "an IPv6 host": ({"system": "hostName=::1"}, lambda found: found.host, "::1"),
}


@pytest.mark.parametrize(("parts", "read", "value"), SAID.values(), ids=SAID)
def test_the_file_may_say(parts, read, value):
    assert read(config(**parts)) == value


def test_paths_are_relative_to_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = config("dataPath=data", "", "[topic=t]\ndataPath=other")
    assert found.data_paths == [str(tmp_path / "data"), str(tmp_path / "other")]


def test_comments_stand_at_the_start_of_a_line():
    sections = parse_ini("; a\n# b\n[s]\n  ; c\nkey=value ; not a comment\n", "x")
    assert {key: entry.value for key, entry in sections["s"].items()} == {"key": "value ; not a comment"}


def test_keys_of_the_java_broker_without_effect_are_accepted():
    lines = "\n".join(f"{key}=1" for key in sorted(SYSTEM_KEYS_WITHOUT_EFFECT - {"loadMessageStoresInParallel"}))
    lines += "\nloadMessageStoresInParallel=true"
    assert config(lines, "brokerId=5\nflushTxLogAtCommit=1", "[topic=t]\ngroup.g1=com.example.Filter\ntopic=t")
    assert config(topics="[topic=t]\ngroup.g1=X").topics["t"].filters == {"g1": "X"}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"system": "numPartition=5"}, ["server.ini:8", "numPartition=5", "numPartitions?"]),
        ({"system": "slaveId=5"}, ["slaveId", "[system]"]),
        ({"system": "slaveId="}, ["slaveId", "[system]"]),
        ({"system": "quartzThreadCount=many"}, ["quartzThreadCount=many", "whole number"]),
        ({"system": "loadMessageStoresInParallel=yes"}, ["loadMessageStoresInParallel=yes", "true or false"]),
        ({"zookeeper": "zk.zkConnect="}, ["zk.zkConnect=", "localhost:2181"]),
        ({"zookeeper": "zk.zkConect=x"}, ["zk.zkConect", "zk.zkConnect?"]),
        ({"topics": "[topic=t]\nunflushTreshold=1"}, ["topic=t", "unflushThreshold?"]),
        ({"topics": ""}, ["topic", "[topic=test]"]),
        ({"topics": "[topic=a/b]"}, ["a/b", "'/'"]),
        ({"topics": "[topic=(*]"}, ["(*", "pattern"]),
        ({"topics": "[topic=]"}, ["empty"]),
        ({"system": "brokerId=1024"}, ["brokerId=1024", "0 … 1023"]),
        ({"system": "serverPort=70000"}, ["serverPort=70000", "65535"]),
        ({"system": "maxSegmentSize=4*1024*1024*1024"}, ["maxSegmentSize", "0 as a 32-bit number"]),
        ({"system": "numPartitions=1.5"}, ["numPartitions=1.5", "whole number"]),
        ({"system": "numPartitions=0"}, ["numPartitions=0"]),
        ({"system": "acceptPublish=TRUE"}, ["acceptPublish=TRUE", "true or false"]),
        ({"system": "deletePolicy=shred,1"}, ["deletePolicy=shred,1", "delete,"]),
        ({"system": "deleteWhen=every day"}, ["deleteWhen=every day", "second minute hour"]),
        ({"system": "hostName=my_host"}, ["hostName=my_host", "Java"]),
        ({"system": "ack=all"}, ["ack=all", "leader, in-sync, disk"]),
        ({"topics": "[topic=t]\nack=Disk"}, ["ack=Disk", "leader, in-sync, disk"]),
        ({"system": "minInSync=0"}, ["minInSync=0", "1"]),
        ({"topics": "[topic=t]\nreplicas=two"}, ["replicas=two", "whole number"]),
        ({"system": "replicas=2", "topics": "[topic=t]\nminInSync=3"}, ["minInSync=3", "replicas=2", "lower it"]),
        ({"topics": "[topic=t]\n[replication]\nnode=a/b"}, ["node=a/b", "'/'"]),
        ({"topics": f"[topic=t]\n[replication]\nnode={'n' * 65}"}, ["node=nnn", "64 characters"]),
        ({"topics": "[topic=t]\n[replication]\nzone=a b"}, ["zone=a b", "blank"]),
        ({"topics": "[topic=t]\n[replication]\ncopyBytesPerSecond=0"}, ["copyBytesPerSecond=0", "1"]),
        ({"topics": "[topic=t]\n[replication]\nnodes=a"}, ["nodes=a", "did you mean node?"]),
        ({"topics": "[topic=t]\n[limits]\nunfinishedBytes=1000"}, ["unfinishedBytes=1000", "16777216"]),
        ({"topics": "[topic=t]\n[limits]\nrequestSecond=3"}, ["did you mean requestSeconds?"]),
        ({"system": "what is this"}, ["server.ini:8", "what is this"]),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(parts, words):
    text = error(**parts)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("key", ["brokerId", "numPartitions", "unflushThreshold", "unflushInterval", "maxSegmentSize"])
def test_a_required_key_is_named(key):
    lines = [line for line in SMALL.format(system="", zookeeper="", topics="[topic=t]").split("\n") if key not in line]
    with pytest.raises(ConfigError, match=f"{key}.*required.*system"):
        parse_config("\n".join(lines).encode())


@pytest.mark.parametrize("section", ["system", "zookeeper"])
def test_a_required_section_is_named(section):
    text = SMALL.format(system="", zookeeper="", topics="[topic=t]").replace(f"[{section}]", "[other]")
    with pytest.raises(ConfigError, match=section):
        parse_config(text.encode())


def test_the_promises_of_a_broker_set_are_inherited_and_follow_the_flush_mode():
    found = config("ack=in-sync\nminInSync=2\nreplicas=3", "", "[topic=a]\n[topic=b]\nack=disk\nminInSync=1")
    a, b = found.topics["a"], found.topics["b"]
    assert (a.promise, a.min_in_sync, a.replicas, a.has_group_commit) == (Promise.IN_SYNC, 2, 3, True)
    assert (b.promise, b.min_in_sync, b.replicas) == (Promise.DISK, 1, 3)
    unset = config("", "", "[topic=sync]\n[topic=async]\nunflushThreshold=100\n[topic=d]\nunflushThreshold=9\nack=disk")
    assert {name: (topic.promise, topic.has_group_commit) for name, topic in unset.topics.items()} == {
        "sync": (Promise.DISK, True),
        "async": (Promise.IN_SYNC, False),
        "d": (Promise.DISK, True),
    }
    assert {(topic.min_in_sync, topic.replicas) for topic in unset.topics.values()} == {(1, None)}


def test_a_section_may_change_a_topic_of_our_own_and_a_pattern_that_begins_as_it_does_all_of_them():
    found = config(
        "numPartitions=4", "", "[topic=%DEAD%*]\ndeletePolicy=delete,720\nnumPartitions=2\n[topic=%DEAD%a]\n[topic=*]"
    )

    def settings(name):
        topic = found.topic(name)
        return topic and (topic.partitions, topic.delete_policy.max_age_s // 3600)

    assert settings("%DEAD%b") == (2, 720)
    assert settings("%DEAD%a") == (4, 168)
    assert settings("%RETRY%b") == (1, 168)  # a pattern for all topics is not meant for it
    assert settings("other") == (4, 168)


def test_a_line_before_the_first_section_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"server\.ini:1"):
        parse_config(b"brokerId=1\n[system]\n")
    with pytest.raises(ConfigError, match=r"none\.ini"):
        read_config(str(tmp_path / "none.ini"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1024*1024", 1 << 20),
        ("0x10", 16),
        ("010", 10),
        ("-1", -1),
        ("(8 + 2) / 3", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("1 << 10 | 1", 1025),
        ("2147483648", -(1 << 31)),
        ("4*1024*1024*1024", 0),
        ("~0", -1),
    ],
)
def test_numbers_are_expressions_that_wrap_to_32_bits(text, value):
    assert evaluate_int32(text) == value


NO_NUMBERS = [
    *("", "1.5", "x", "__import__('os')", "2**9", "1/0", "1<<9999", "True"),
    *("[1]", "1+", "1_000", "0b1", "0o7", "9" * 300 + "*1", "'a'"),
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_anything_else_is_no_number(text):
    with pytest.raises(ValueError, match=r"."):
        evaluate_int32(text)


@pytest.mark.parametrize(
    ("listen", "host_name", "registered"),
    [
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "hostName=queue.example", "queue.example"),
        ("0.0.0.0", "", local_address()),
        ("::", "", local_address()),
        ("::1", "", "::1"),
    ],
)
def test_the_address_that_is_listened_on_is_registered_unless_a_name_is_set(listen, host_name, registered):
    source = SMALL.format(system=host_name, zookeeper="", topics="[topic=t]")
    found = parse_config(source.encode(), listen=listen)
    assert (found.listen, found.host) == (listen, registered)
