"""Every option of a read, a stream and a write: a wrong value is an error with option, value and choices, at once."""

import pytest

from metaq.protocol.errors import ConfigError
from metaq.spark_connector import options

WRONG_READS = {
    "zookeeper": {"": "host:2181", "host:port": "host:port[,host:port", "h:99999": "/chroot]"},
    "subscribe": {
        "": "a topic, or several separated by commas",
        "a/b": "without '/'",
        "a,,b": "empty",
        "a\U0001f600": "ZooKeeper does not take",
    },
    "subscribePattern": {"": "regular expression", "tr(": "not a Python regular expression"},
    "assign": {
        "": "give JSON",
        "t": "is not JSON",
        "{}": "names no partition",
        '{"t":[]}': "assign",
        '{"t":["0"]}': "<broker>-<number>",
        '{"t":[0]}': "assign",
        '{"a/b":["0-0"]}': "assign",
        '{"t":["0-0","0-1","0-0"]}': "names t 0-0 twice",
        '{"t":["0-0","00-0"]}': "names t 0-0 twice",
    },
    "startingOffsets": {
        "first": "earliest, committed",
        "": "earliest",
        "committed": "needs the option group",
        "{": "is not JSON",
        '{"t":5}': "needs an object",
        '{"t":{"0-0":"5"}}': "byte offset",
        '{"t":{"0-0":true}}': "byte offset",
        '{"t":{"0-0":-3}}': "-2: earliest",
        '{"t":{"0-0":0,"0-0":9}}': "names 0-0 twice",
        '{"t":{"0-0":0},"t":{"0-1":9}}': "names t twice",
    },
    "startingTimestamp": {"noon": "an integer from 0", "-1": "an integer from 0", "1.5": "an integer from 0"},
    "startingOffsetsByTimestamp": {"[1]": "not an object of topics", '{"t":{"0-0":-1}}': "milliseconds since 1970"},
    "startingOffsetsByTimestampStrategy": {"fail": "error, latest", "": "error, latest"},
    "group": {"a.b": "forbids", "a/b": "forbids", "a\U0001f600": "ZooKeeper does not take"},
    "failOnDataLoss": {"maybe": "true, false", "": "true, false", "1": "true, false"},
    "minPartitions": {"0": "from 1 to 1000000", "1000001": "from 1 to 1000000", "many": "an integer"},
    "maxRecordsPerPartition": {"0": "an integer from 1", "-5": "an integer from 1"},
    "includeHeaders": {"yes": "true, false"},
    "typedHeaders": {"1": "true, false"},
    "includeExpired": {"no": "true, false"},
    "includePriority": {"9": "true, false"},
    "tags": {
        "a,,b": "separated by commas",
        ",".join(map(str, range(101))): "up to 100 tags",
        "a||b": "write A,B",
        "*": "leave it out",
        "a, b": "write A,B without blanks",
        "ab ": "the option where",
        "\ta": "the option where",
    },
    "where": {"a =": "where"},
    "pushFilters": {"on": "true, false"},
    "metaq.root": {"/meta/..": "cannot be the name of a znode", ".": "cannot be the name of a znode"},
    "metaq.protocol": {"http": "auto, text", "": "auto, text"},
    "metaq.fetch.bytes": {"4095": "from 4096 to 15728640", "15728641": "from 4096", "1m": "an integer"},
    "metaq.check.crcs": {"always": "true, false"},
    "metaq.connect.timeout.seconds": {"0": "from 1 to 3600", "3601": "from 1 to 3600"},
    "metaq.request.timeout.seconds": {"0": "from 1 to 3600", "0.5": "from 1 to 3600"},
    "endingOffsets": {"earliest": "latest, JSON", '{"t":{"0-0":-2}}': "would be empty", "{": "is not JSON"},
    "endingTimestamp": {"later": "an integer from 0"},
    "endingOffsetsByTimestamp": {"{": "is not JSON", '{"t":5}': "an object of partitions"},
    "maxOffsetsPerTrigger": {"0": "an integer from 1", "all": "an integer from 1"},
    "maxBytesPerTrigger": {"0": "an integer from 1", "1k": "an integer from 1"},
    "minOffsetsPerTrigger": {"-1": "an integer from 1"},
    "maxTriggerDelay": {"15": "units ms, s, m", "5 years": "units ms, s, m", "": "units ms, s, m"},
}

WRONG_WRITES = {
    "zookeeper": WRONG_READS["zookeeper"],
    "topic": {"a/b": "without '/'", " ": "a blank or control character"},
    "exactlyOnce": {"once": "true, false", "": "true, false", "yes": "true, false"},
    "typedHeaders": {"1": "true, false"},
    "compression": {"gzip": "none, zstd", "true": "none, zstd"},
    "metaq.root": WRONG_READS["metaq.root"],
    "metaq.protocol": WRONG_READS["metaq.protocol"],
    "metaq.batch.messages": {"0": "from 1 to 100000", "100001": "from 1 to 100000", "x": "an integer"},
    "metaq.transaction.bytes": {
        "65535": "from 65536 to 67108864",
        "67108865": "from 65536 to 67108864",
        "8m": "an int",
    },
}


def cases(table):
    return [(name, value, said) for name, values in table.items() for value, said in values.items()]


def test_every_option_is_in_the_tables():
    assert set(WRONG_READS) == set(options.READ_NAMES)
    assert set(WRONG_WRITES) == set(options.WRITE_NAMES)


def check(refused, name, value, said):
    assert refused.value.option == name
    text = str(refused.value)
    assert text.startswith((f"{name}={value.strip()}", f"{name}={value!r}"))
    assert said in text


@pytest.mark.parametrize(("name", "value", "said"), cases(WRONG_READS))
def test_a_wrong_value_of_a_read_is_refused(name, value, said):
    selection = {} if name in ("assign", "subscribePattern") else {"subscribe": "t"}
    modes: tuple[options.ReadMode, ...] = ("batch", "stream", "any")
    for mode in modes:
        if name in (options.STREAM_NAMES if mode == "batch" else options.BATCH_NAMES if mode == "stream" else ()):
            continue
        with pytest.raises(ConfigError) as refused:
            options.ReadOptions.parse({"zookeeper": "h:1", **selection, name: value}, mode)
        check(refused, name, value, said)


@pytest.mark.parametrize(("name", "value", "said"), cases(WRONG_WRITES))
def test_a_wrong_value_of_a_write_is_refused(name, value, said):
    for streaming in (False, True):
        with pytest.raises(ConfigError) as refused:
            options.WriteOptions.parse({"zookeeper": "h:1", "topic": "t", name: value}, streaming=streaming)
        check(refused, name, value, said)


@pytest.mark.parametrize("name", [*options.BATCH_NAMES, *options.STREAM_NAMES])
def test_an_option_of_the_other_kind_of_read_is_refused(name):
    mode: options.ReadMode = "batch" if name in options.STREAM_NAMES else "stream"
    kind = "streaming" if mode == "batch" else "batch"
    with pytest.raises(ConfigError, match=f"^{name}=5: is an option of {kind} reads only"):
        options.ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", name: "5"}, mode)
