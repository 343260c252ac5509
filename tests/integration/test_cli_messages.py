"""produce, consume, topics, groups and brokers against a cluster started by `metaq up`."""

import json
import re
import signal
import subprocess
from functools import partial

import pytest

from metaq import Producer
from metaq.errors import NoPartition
from tests.waiting import DEADLINE, eventually

from .cli_helpers import Up, start, stop

TOPICS = [
    "lines:2",
    "keyed:3",
    "tagged:1",
    "seek:2",
    "shared:2",
    "idle:1",
    "resume:1",
    "piped:1",
    "stopped:1",
    "whole:1",
    "typed:1",
]
OPTIONS = ("--brokers", "2")


def consumed(cluster: Up, *arguments: str) -> list[str]:
    ran = cluster.run("consume", *arguments)
    assert ran.code == 0, ran.err
    return ran.out.splitlines()


def test_lines_of_stdin_come_back_from_all_partitions_in_order_within_each(cluster):
    lines = [f"line {number}" for number in range(5000)]
    ran = cluster.run("produce", "--topic", "lines", "--batch", "100", stdin="\n".join(lines).encode())
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"sent 5,000 messages \(43\.9 kB\) to lines in .* s: .*/s\n", ran.err)
    rows = [line.split("|") for line in consumed(cluster, "--topic", "lines", "--format", r"%p|%o|%s\n")]
    assert sorted(row[2] for row in rows) == sorted(lines)
    by_partition: dict[str, list[tuple[int, int]]] = {}
    for partition, offset, text in rows:
        by_partition.setdefault(partition, []).append((int(offset), int(text.split()[1])))
    assert sorted(by_partition) == ["0-0", "0-1", "1-0", "1-1"]  # round robin reaches every one
    assert all(found == sorted(found) for found in by_partition.values())


def test_a_file_is_sent_and_the_summary_is_json_on_demand(cluster, tmp_path):
    (tmp_path / "input").write_bytes(b"one\r\ntwo\n\nlast without a line end")
    ran = cluster.run("produce", "--topic", "tagged", "--tag", "t1", "--json", str(tmp_path / "input"))
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["messages"] == 4
    assert cluster.run("produce", "--topic", "tagged", "--tag", "t2", stdin=b"other").code == 0
    assert sorted(consumed(cluster, "--topic", "tagged", "--tag", "t1")) == [
        "",
        "last without a line end",
        "one",
        "two",
    ]
    (row,) = map(json.loads, consumed(cluster, "--topic", "tagged", "--tag", "t2", "--json"))
    assert (row["payload"], row["tag"], row["topic"]) == ("other", "t2", "tagged")


def test_properties_and_a_time_to_live_are_those_of_every_line(cluster):
    options = "--property", "region=EU", "--property", "n:int=7", "--property", "raw:bytes=/w=="
    ran = cluster.run("produce", "--topic", "typed", *options, "--ttl", "600", stdin=b"a")
    assert ran.code == 0
    assert cluster.run("produce", "--topic", "typed", "--ttl", "0.001", stdin=b"b").code == 0
    properties = [json.loads(line)["properties"] for line in consumed(cluster, "--topic", "typed", "--json")]
    assert sorted(properties, key=len) == [{}, {"region": "EU", "n": 7, "raw": {"base64": "/w=="}}]
    assert sorted(consumed(cluster, "--topic", "typed", "--format", "%h %s\\n")) == [" b", "region=EU,n=7,raw=/w== a"]
    in_group = consumed(cluster, "--topic", "typed", "--group", "g", "--timeout", "2")
    assert in_group == ["a"]


def test_compression_needs_a_topic_that_allows_it(cluster):
    for lines, more in ((b"again " * 1000, ()), (b"k:" + b"again " * 1000, ("--key-separator", ":"))):
        ran = cluster.run("produce", "--topic", "typed", "--compression", "zstd", *more, stdin=lines)
        assert ran.code == 1
        assert "topic typed takes no compressed messages: set acceptCompressed=true" in ran.err
        assert ran.err.endswith("--compression); no line is stored: send all again\n")


def test_one_key_keeps_to_one_partition(cluster):
    lines = "".join(f"k{number % 7}:payload:{number}\n" for number in range(200))
    ran = cluster.run("produce", "--topic", "keyed", "--key-separator", ":", stdin=lines.encode())
    assert ran.code == 0, ran.err
    rows = [line.split("|") for line in consumed(cluster, "--topic", "keyed", "--format", r"%k|%p|%s\n")]
    assert len(rows) == 200
    assert all(payload.startswith("payload:") for _, _, payload in rows)
    assert len({(key, partition) for key, partition, _ in rows}) == len({key for key, _, _ in rows}) == 7


def test_a_line_without_its_separator_stops_and_says_what_was_acknowledged(cluster):
    ran = cluster.run("produce", "--topic", "resume", "--key-separator", ":", "--batch", "2", stdin=b"a:1\na:2\nb\n")
    assert ran.code == 1
    assert "line b'b' has no ':'" in ran.err
    assert "acknowledged: the first 2 lines; to resume: tail -n +3" in ran.err
    assert consumed(cluster, "--topic", "resume") == ["1", "2"]


def _is_stored(cluster: Up, topic: str, line: str) -> bool:
    return line in consumed(cluster, "--topic", topic)


def test_produce_that_ctrl_c_ends_says_what_was_acknowledged(cluster):
    process = start("produce", "--topic", "stopped", env=cluster.env, stdin=subprocess.PIPE)
    assert process.stdin is not None
    for lines in (b"1\n2\n3\n", b"4\n"):  # the fourth is sent when the first three are acknowledged
        process.stdin.write(lines)
        process.stdin.flush()
        last = lines.split()[-1].decode()
        eventually(partial(_is_stored, cluster, "stopped", last), what="what was sent")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=DEADLINE)[1].decode()
    assert process.returncode == 130
    found = re.search(r"interrupted; acknowledged: the first (3|4) lines; to resume: tail -n \+(4|5)", said)
    assert found is not None, said
    assert int(found[2]) == int(found[1]) + 1


def test_reading_may_begin_at_an_offset_a_time_or_the_end(cluster):
    assert cluster.run("produce", "--topic", "seek", stdin=b"a\nb\nc\n").code == 0
    rows = [line.split("|") for line in consumed(cluster, "--topic", "seek", "--format", r"%p|%o|%T|%s\n")]
    partition, offset, stored, text = rows[1]
    assert text == "b"
    assert consumed(cluster, "--topic", "seek", "--partition", partition, "--from", offset) == ["b", "c"]
    assert consumed(cluster, "--topic", "seek", "--count", "1") == ["a"]
    assert consumed(cluster, "--topic", "seek", "--from", "latest") == []
    assert consumed(cluster, "--topic", "seek", "--from", "1970-01-01T00:00:00Z") == ["a", "b", "c"]
    assert consumed(cluster, "--topic", "seek", "--from", "2100-01-01T00:00:00Z") == []
    assert int(stored) > 1_700_000_000_000


def test_an_offset_inside_a_message_or_outside_the_partition_is_one_clear_line(cluster):
    assert cluster.run("produce", "--topic", "seek", stdin=b"d\n").code == 0
    (row,) = map(json.loads, consumed(cluster, "--topic", "seek", "--count", "1", "--json"))
    inside = cluster.run("consume", "--topic", "seek", "--partition", row["partition"], "--from", "3")
    assert (inside.code, inside.err.count("\n")) == (1, 1)
    assert "no message begins there, one does at 0" in inside.err
    beyond = cluster.run("consume", "--topic", "seek", "--partition", row["partition"], "--from", "99999")
    assert (beyond.code, beyond.err.count("\n")) == (1, 1)
    assert re.search(r"99999 is outside \[0, \d+\], the readable bytes of seek [01]-[01]: choose", beyond.err)


def test_a_message_to_a_misspelt_topic_ends_in_an_error_that_names_the_nearest(cluster):
    words = r"topic 'line' has no partition: .*: did you mean 'lines'\?"
    with Producer(cluster.zookeeper) as producer, pytest.raises(NoPartition, match=words):
        producer.send("line", b"x")


def test_a_group_is_not_moved_into_a_message(cluster):
    lines = b"k:one\nk:two\nk:three\n"
    assert cluster.run("produce", "--topic", "whole", "--key-separator", ":", stdin=lines).code == 0
    rows = list(map(json.loads, consumed(cluster, "--topic", "whole", "--json")))
    offsets, partition = [row["offset"] for row in rows], rows[0]["partition"]
    arguments = ("groups", "seek", "whole", "--new", "--topic", "whole", "--partition", partition, "--to")
    for inside in (offsets[1] + 1, offsets[2] - 1):
        refused = cluster.run(*arguments, str(inside), "--dry-run")
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert f"offset {inside} is inside a message of whole {partition}: choose {offsets[1]}, " in refused.err
        assert f", or {offsets[2]}, " in refused.err
    assert cluster.run("groups", "describe", "whole").code == 1, "nothing was stored"
    for offset in offsets:
        assert cluster.run(*arguments, str(offset)).code == 0
    assert consumed(cluster, "--topic", "whole", "--group", "whole", "--count", "1", "--timeout", "120") == ["three"]


def test_following_without_a_group_ends_at_the_count_or_the_timeout(cluster):
    assert cluster.run("produce", "--topic", "idle", stdin=b"x\ny\n").code == 0
    assert cluster.run("consume", "--topic", "idle", "--follow", "--count", "2").out == "x\ny\n"
    short = cluster.run("consume", "--topic", "idle", "--follow", "--count", "3", "--timeout", "5")
    assert short.code == 1
    assert short.out == "x\ny\n"
    assert short.err == "metaq: only 2 of --count=3 messages came before --timeout=5 s\n"
    assert cluster.run("consume", "--topic", "idle", "--follow", "--timeout", "0.5").code == 0


def test_a_group_goes_on_where_it_stopped(cluster):
    lines = [str(number) for number in range(100)]
    sent = cluster.run("produce", "--topic", "shared", "--batch", "10", stdin="\n".join(lines).encode())
    assert sent.code == 0  # to every partition
    arguments = ("--topic", "shared", "--group", "audit", "--timeout", "120")
    first = consumed(cluster, *arguments, "--count", "40")
    second = consumed(cluster, *arguments, "--count", "60")
    assert (len(first), len(second)) == (40, 60)
    assert sorted(first + second, key=int) == lines
    described = json.loads(cluster.run("groups", "describe", "audit", "--json").out)
    assert described["members"] == []
    assert [row["lag_messages"] for row in described["partitions"]] == [0, 0, 0, 0]


def test_a_groups_offsets_are_moved_only_without_live_members(cluster):
    assert "--new gives" in cluster.run("groups", "seek", "mover", "--topic", "shared", "--to", "earliest").err
    assert cluster.run("groups", "seek", "mover", "--new", "--topic", "shared", "--to", "earliest").code == 0
    described = json.loads(cluster.run("groups", "describe", "mover", "--json").out)
    assert sum(row["lag_messages"] for row in described["partitions"]) == 100
    assert cluster.run("groups", "seek", "mover", "--topic", "shared", "--partition", "1-1", "--to", "latest").code == 0
    described = json.loads(cluster.run("groups", "describe", "mover", "--json").out)
    assert {row["partition"]: row["lag_messages"] for row in described["partitions"]}["1-1"] == 0
    member = start("consume", "--topic", "shared", "--group", "mover", env=cluster.env)
    try:
        assert member.stdout is not None
        assert member.stdout.readline()  # it is a member now
        refused = cluster.run("groups", "seek", "mover", "--topic", "shared", "--to", "latest")
        assert refused.code == 1
        assert "has 1 live member (" in refused.err
        assert "stop them first" in refused.err
    finally:
        assert stop(member, signal.SIGINT) == 130
    assert json.loads(cluster.run("groups", "list", "--json").out)


def test_topics_and_brokers_tell_what_there_is(cluster):
    listed = json.loads(cluster.run("topics", "list", "--json").out)
    assert {row["topic"]: row["partitions"] for row in listed}["keyed"] == 6
    described = json.loads(cluster.run("topics", "describe", "shared", "--json").out)["partitions"]
    assert sum(row["messages"] for row in described) == 100
    assert all(row["bytes"] == row["end_offset"] - row["first_offset"] for row in described)
    assert [row["bytes"] > 0 for row in described] == [row["messages"] > 0 for row in described]
    brokers = json.loads(cluster.run("brokers", "list", "--json").out)
    assert [row["address"] for row in brokers] == [f"127.0.0.1:{port}" for port in cluster.broker_ports]
    about = json.loads(cluster.run("brokers", "describe", "1", "--json").out)
    assert (about["broker_id"], about["protocol"]) == ("1", "frames")
    for table in (
        ("topics", "list"),
        ("topics", "describe", "shared"),
        ("brokers", "list"),
        ("brokers", "describe", "0"),
    ):
        ran = cluster.run(*table)
        assert ran.code == 0
        assert len(ran.out.splitlines()) > 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("consume", "--topic", "nowhere"), "topic 'nowhere' is published by no live broker"),
        (("consume", "--topic", "lines", "--partition", "7-0"), "has no partition 7-0: choose from 0-0, 0-1, 1-0, 1-1"),
        (("topics", "describe", "nowhere"), "topic 'nowhere' is published by no live broker"),
        (("brokers", "describe", "9"), "broker 9 is not registered"),
        (("groups", "describe", "nobody"), "group 'nobody' has no members and no offsets"),
        (("groups", "seek", "g", "--new", "--topic", "lines", "--to", "999999"), "999999 is outside"),
    ],
)
def test_what_does_not_exist_is_one_line_and_exit_code_1(cluster, arguments, said):
    ran = cluster.run(*arguments)
    assert ran.code == 1
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_a_reader_that_leaves_its_pipe_is_no_traceback(cluster):
    assert cluster.run("produce", "--topic", "piped", stdin=b"more than a pipe holds\n" * 10_000).code == 0
    process = start("consume", "--topic", "piped", env=cluster.env)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 141
    assert said == b""


@pytest.mark.parametrize(
    ("command", "number", "codes"),
    [
        (("consume", "--topic", "seek", "--follow"), signal.SIGINT, (130,)),
        (("consume", "--topic", "seek", "--group", "interrupted"), signal.SIGINT, (130,)),
        (("consume", "--topic", "seek", "--group", "ended"), signal.SIGTERM, (0,)),
        (("monitor", "--every", "600"), signal.SIGINT, (0, 1)),
        (("monitor", "--every", "600"), signal.SIGTERM, (0, 1)),
    ],
)
def test_commands_that_run_on_end_with_the_code_of_the_page(cluster, command, number, codes):
    assert cluster.run("produce", "--topic", "seek", stdin=b"something to print\n").code == 0
    process = start(*command, env=cluster.env)
    assert process.stdout is not None
    assert process.stdout.readline()
    assert stop(process, number) in codes
