"""The pieces of `metaq consume` and `metaq produce` that need no cluster."""

import io
import json
import shlex
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from metaq.cli.app import run
from metaq.cli.consume import IdleTimer, Output
from metaq.cli.produce import (
    LineChunk,
    Progressed,
    _keyed_sender,
    _print_summary,
    _send_lines,
    line_chunks,
    parse_property,
)
from metaq.client.producer.building import SendOptions
from metaq.client.questions.stored_records import decode_records
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.protocol import errors
from metaq.protocol.limits import MAX_BODY_BYTES
from metaq.protocol.record import encode_record
from metaq.protocol.statuses import ResponseCode, Status

PLACE = TopicPartition("trades", 0, 0)


class Slow(io.RawIOBase):
    """A pipe whose writer writes piece by piece."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def lines_of(stream):
    return [chunk.lines for chunk in line_chunks(stream)]


@pytest.mark.parametrize(
    ("stream", "lines"),
    [
        pytest.param(Slow(b"a\nb\nc", b"c\n", b"d"), [[b"a", b"b"], [b"cc"], [b"d"]], id="as they come"),
        pytest.param(Slow(b"a\r\n\nb\n"), [[b"a\r", b"", b"b"]], id="empty lines are kept"),
        pytest.param(Slow(b"a\nb\r"), [[b"a"], [b"b\r"]], id="only a line end is taken off"),
        pytest.param(Slow(b""), [], id="nothing is no message"),
    ],
)
def test_lines_are_handed_on(stream, lines):
    assert lines_of(io.BufferedReader(stream)) == lines


def test_all_bytes_of_a_file_are_counted_for_the_progress_bar():
    assert sum(chunk.read_bytes for chunk in line_chunks(io.BytesIO(b"abc\ndef\n"))) == 8


def test_a_line_that_is_no_message_is_refused_before_it_fills_the_memory():
    endless = io.BytesIO(b"x" * (MAX_BODY_BYTES + (2 << 20)))
    with pytest.raises(errors.ClientError, match="longer than"):
        list(line_chunks(endless))


@pytest.mark.parametrize(("count", "left"), [(2, [2, 1, 0]), (None, [None] * 3)])
def test_output_counts_down_to_the_count_or_never_ends(count, left):
    stream = io.BytesIO()
    output = Output(lambda message: message.payload, count, stream)
    found = [output.left]
    for payload in (b"a", b"b"):
        output.put(Message(PLACE, 0, 1, 0, payload))
        found.append(output.left)
    assert (found, output.printed, stream.getvalue()) == (left, 2, b"ab")


def test_idle_timer_runs_from_the_last_message():
    now = [100.0]
    timer = IdleTimer(5.0, clock=lambda: now[0])
    now[0] = 104.9
    assert timer.may_wait()
    timer.message_came()
    now[0] = 109.8
    assert timer.may_wait()
    now[0] = 109.9
    assert not timer.may_wait()
    assert timer.expired


def test_without_a_timeout_the_timer_never_expires():
    now = [0.0]
    timer = IdleTimer(None, clock=lambda: now[0])
    now[0] = 1e9
    assert timer.may_wait()
    assert not timer.expired


def test_records_become_messages_with_their_offsets():
    data = encode_record(b"one", 7, 0) + encode_record(b"two", 8, 0) + b"\0\0"
    found = [(each.offset, each.id, each.payload) for each in decode_records(memoryview(data), PLACE, 100)]
    assert found == [(100, 7, b"one"), (123, 8, b"two")]


@pytest.mark.parametrize("data", [b"\0" * 19, encode_record(b"one", 7, 0)[:-1], b"\0\0\0\1" + b"\1" * 17])
def test_bytes_that_are_no_whole_record_raise_instead_of_being_asked_for_for_ever(data):
    with pytest.raises(errors.CorruptRecord, match=r"does one begin there|checksum does not match"):
        list(decode_records(memoryview(data), PLACE, 100))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("consume", "--topic"),
        ("consume -t a/b", "use a name without '/'"),
        ("consume -t a --from noon", "choose earliest, latest"),
        ("consume -t a --format %q", "'%q' is not a field"),
        ("consume -t a --group a.b", "forbids"),
        ("consume -t a --group g --from 4096", "metaq groups seek"),
        ("consume -t a --group g -p 0-1", "--partition"),
        ("consume -t a --group g --follow", "--follow"),
        ("consume -t a --count 0", "--count"),
        ("consume -t a --timeout x", "--timeout"),
        (
            "consume -t a --where 'a = 1' --where 'b OR c'",
            "--where: it is given 2 times: join the filters, as '(a = 1) AND (b OR c)'",
        ),
        ("consume -t a --where 'region = \"EU\"'", "texts stand in '…'"),
        ("produce -t a/b", "use a name without '/'"),
        ("produce -t a /no/such/file", "/no/such/file"),
        ("produce -t a --key-separator ''", "--key-separator"),
        ("produce -t a --batch 0", "--batch"),
        ("consume -t a --tag '*'", "write --tag A --tag B"),
        ("consume -t a --tag 'A || B'", "write --tag A --tag B"),
        ("groups seek g -t a --to x", "--to"),
        ("topics describe a/b", "use a name without '/'"),
        ("brokers describe -1", "-1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_anything_is_opened(capsys, arguments, said):
    assert run(shlex.split(arguments)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_that_lines_may_come_twice_is_said_where_it_is_not_certain_that_none_is_stored():
    def told(error):
        def send(lines):
            raise error

        with pytest.raises(errors.ClientError) as raised:
            _send_lines([LineChunk([b"a"], 2)], send, 1, Progressed(), lambda _: None)
        return str(raised.value)

    assert told(errors.RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "no")) == "no; no line is stored: send all again"
    assert told(errors.CompressionUnknown("b")).endswith("; no line is stored: send all again")
    doubt = "no; no line is acknowledged: send all again; some may come twice"
    assert told(errors.RequestTimedOut("no")) == told(errors.RequestRefused(Status.FORBIDDEN, "no")) == doubt


class Refusing:
    """A producer that refuses some payloads when they are sent, and others when they arrive."""

    def __init__(self, refuses=(), cannot_send=()):
        self.refuses, self.cannot_send = refuses, cannot_send

    def send_async(self, topic, payload, **options):
        if payload in self.cannot_send:
            raise errors.LocalProtocolError("too large")
        future: Future[SimpleNamespace] = Future()
        if payload in self.refuses:
            future.set_exception(errors.RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "no"))
        else:
            future.set_result(SimpleNamespace(replicas=None))
        return future


@pytest.mark.parametrize(
    ("producer", "kind"),
    [
        (Refusing(refuses=(b"1", b"2")), errors.RequestRefused),
        (Refusing(refuses=(b"2",)), errors.ClientError),
        (Refusing(cannot_send=(b"1",)), errors.LocalProtocolError),
        (Refusing(cannot_send=(b"2",)), errors.ClientError),
    ],
)
def test_of_lines_with_keys_a_refusal_is_certain_if_no_other_line_was_sent_with_it(producer, kind):
    send = _keyed_sender(producer, "t", SendOptions(), b":")
    with pytest.raises(kind) as raised:
        send([b"a:1", b"b:2"])
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("acknowledged", "said"),
    [
        (0, "interrupted; no line is acknowledged: send all again"),
        (2, "interrupted; acknowledged: the first 2 lines; to resume: tail -n +3"),
    ],
)
def test_ctrl_c_says_how_many_lines_are_acknowledged(capsys, acknowledged, said):
    def send(lines):
        if progressed.messages == acknowledged:
            raise KeyboardInterrupt
        return len(lines[0]), (2,)

    progressed = Progressed()
    chunks = [LineChunk([b"a"], 2), LineChunk([b"b", b"c"], 4)]
    with pytest.raises(KeyboardInterrupt):
        _send_lines(chunks, send, 1, progressed, lambda _: None)
    assert said in capsys.readouterr().err
    assert progressed.replicas == ({2} if acknowledged else set())


@pytest.mark.parametrize(
    ("told", "ends", "least"),
    [
        ([2, 2], ", on 2 nodes", 2),
        ([2, 3], ", on 2 to 3 nodes", 2),
        ([2, None, 2], ", on 2 nodes, and some of them on brokers that are no set", None),
        ([2, 1], ", on 1 to 2 nodes", 1),
        ([1, 1], ", on one node alone", 1),
        ([1, None], ", on one node alone, and some of them on brokers that are no set", None),
        ([None], "/s", None),
    ],
)
def test_the_summary_of_produce_says_on_how_many_nodes_all_messages_are(capsys, told, ends, least):
    progressed = Progressed()
    answers = iter(told)
    _send_lines([LineChunk([b"a"], 2)] * len(told), lambda _: (1, (next(answers),)), 1, progressed, lambda _: None)
    _print_summary("t", progressed, as_json=False)
    assert capsys.readouterr().err.strip().endswith(ends)
    _print_summary("t", progressed, as_json=True)
    assert json.loads(capsys.readouterr().out)["replicas"] == least


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region=EU", ("region", "EU")),
        ("note=a=b:c", ("note", "a=b:c")),
        ("empty=", ("empty", "")),
        ("n:int=-7", ("n", -7)),
        ("x:float=0.5", ("x", 0.5)),
        ("yes:bool=true", ("yes", True)),
        ("raw:bytes=/w==", ("raw", b"\xff")),
        ("t:str=7", ("t", "7")),
    ],
)
def test_a_property_has_a_name_perhaps_a_type_and_a_value(text, expected):
    name, value = parse_property(text)
    assert (name, type(value), value) == (expected[0], type(expected[1]), expected[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("region", "has no '=': write NAME=VALUE"),
        ("n:long=7", "'long' is no type: choose str, int, float, bool, bytes"),
        ("n:int=x", "'x' is no int: write a whole number, like 7"),
        ("n:int=9223372036854775808", "properties['n']=9223372036854775808 has more than 64 bits: write it as a text"),
        ("x:float=a", "'a' is no float: write a number, like 0.5"),
        ("x:float=nan", "properties['x']=nan is no finite number: leave it out, or write a text"),
        ("n:bool=1", "'1' is no bool: write true or false"),
        ("n:bytes=/w", "'/w' is no bytes: write base64, like /w=="),
        ("=EU", "property name '' is empty: give it a name"),
        (":int=7", "property name '' is empty: give it a name"),
        ("metaq.due=7", "property name 'metaq.due' is reserved: choose another"),
        ("region=E\x01U", "property 'region' has a byte 0x01 or 0x02, which separate properties: take it out"),
        ("region=\udcff", "is no UTF-8: write NAME:bytes=BASE64"),
    ],
)
def test_a_wrong_property_ends_the_command_before_it_reads_or_connects(text, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)  # whoever reads it fails
    monkeypatch.setattr("metaq.cli.produce.Producer", None)
    assert run(["produce", "--topic", "t", "--property", "fine=1", "--property", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("metaq produce: Invalid value for '--property': ")
    assert repr(text) in line
    assert line.endswith(said)


def test_a_property_that_is_given_twice_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("metaq.cli.produce.Producer", None)
    assert run(["produce", "--topic", "t", "--property", "n:int=1", "--property", "n:int=2"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "metaq produce: Invalid value for '--property': 'n' is given 2 times, and a message has it once: leave one out"
    ]
