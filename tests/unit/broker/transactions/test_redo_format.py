"""The transaction log's bytes: those the Java broker wrote (tests/data/golden/store), read and written again."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store.batch import encode_puts
from metaq.broker.store.files import REAL_FILES
from metaq.broker.transactions.commands import Operation, OperationType, StoredPut, decode_command
from metaq.broker.transactions.directory import REDO_PREFIX, numbered_files
from metaq.broker.transactions.redo import encode_locations
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import checksum
from metaq.protocol.transactions import is_xa
from tests.doubles.redo import encode_operation_record, encode_put_record, read_redo

GOLDEN = Path(__file__).resolve().parents[3] / "data" / "golden" / "store"
RECORDS = json.loads((GOLDEN / "redo.json").read_text())["records"]
ENTRIES = read_redo(REAL_FILES, str(GOLDEN / "redo.1")).entries


def encode(entry):
    if isinstance(entry.command, StoredPut):
        return b"".join(encode_put_record(entry.command))
    return b"".join(encode_operation_record(entry.command, encode_locations(entry.locations)))


def test_javas_log_is_read_to_its_end():
    contents = read_redo(REAL_FILES, str(GOLDEN / "redo.1"))
    assert contents.problem is None
    assert contents.end == contents.size == (GOLDEN / "redo.1").stat().st_size
    assert [entry.offset for entry in contents.entries] == [record["offset"] for record in RECORDS]


@pytest.mark.parametrize(("entry", "record"), list(zip(ENTRIES, RECORDS, strict=True)))
def test_javas_records_are_understood(entry, record):
    command = entry.command
    if record["cmdType"] == "APPEND_MSG":
        line, body = record["put_command"].split("\r\n")
        assert command.message_id == record["message_id"]
        _, topic, partition, _, flag, crc, key, opaque = line.split(" ")
        assert command[2:] == (topic, int(partition), int(flag), int(crc), int(opaque), body.encode())
        assert command.tx_key == key
    else:
        assert (command.type.name, command.was_prepared) == (record["type"], record["was_prepared"])
        assert command.tx_key == record["transaction_id"]
        assert command.attachment_bytes == record.get("data_length", 0)
        expected = [
            tuple(each[name] for name in ("store", "offset", "length", "checksum"))
            for each in record.get("locations", ())
        ]
        assert list(entry.locations) == expected


def test_written_again_they_are_the_same_bytes():
    assert b"".join(map(encode, ENTRIES)) == (GOLDEN / "redo.1").read_bytes()


def test_javas_checksums_of_what_a_commit_appended_are_ours():
    """The block a commit appends follows from the puts of its transaction, in their order."""
    open_puts: dict[str, dict[str, list[StoredPut]]] = {}
    compared = 0
    for entry in ENTRIES:
        command = entry.command
        if isinstance(command, StoredPut):
            store = f"{command.topic}-{command.partition}"
            open_puts.setdefault(command.tx_key, {}).setdefault(store, []).append(command)
        elif command.type is not OperationType.XA_PREPARE:
            blocks = open_puts.pop(command.tx_key)
            for location in entry.locations:
                puts = blocks[location.store]
                records = [(put.flag, checksum(put.body), put.body) for put in puts]
                data, _ = encode_puts(records, 0, [put.message_id for put in puts], 0)
                assert checksum(b"".join(data)) == location.checksum
                assert sum(map(len, data)) == location.size
                compared += 1
    assert compared >= 8


WHOLE = (GOLDEN / "redo.1").read_bytes()


@pytest.mark.parametrize(
    ("data", "left"),
    [
        *((WHOLE[:-cut], ENTRIES[:-1]) for cut in (1, 3, 5, 60)),
        *((WHOLE + tail, ENTRIES) for tail in (bytes(40), b"\xff" * 40, b"\0\0\0\x05hello", b"\0\0\0\x02\x08\x07")),
    ],
    ids=[*(f"cut {cut} bytes" for cut in (1, 3, 5, 60)), "zeros", "ones", "no message", "a part of one"],
)
def test_a_torn_tail_or_what_is_no_record_is_where_reading_stops(tmp_path, data, left):
    (tmp_path / "redo.1").write_bytes(data)
    contents = read_redo(REAL_FILES, str(tmp_path / "redo.1"))
    assert (contents.entries, contents.end, contents.size) == (left, left[-1].end, len(data))
    assert contents.problem


int32 = st.integers(-(2**31), 2**31 - 1)
keys = st.one_of(
    st.builds("TX:{}:{}".format, st.sampled_from(["", "10.0.0.1-5-1", "é"]), int32),
    st.builds(
        "XID:{}:{}:{}:{}".format,
        int32,
        *[st.binary(max_size=64).map(bytes.hex)] * 2,
        st.sampled_from(["", "host"]),
    ),
)
ids, topics = st.integers(-(2**63), 2**63 - 1), st.sampled_from(["t", "thème"])
partitions, checksums = (st.integers(least, 2**31 - 1) for least in (0, -1))


@given(st.builds(StoredPut, keys, ids, topics, partitions, int32, checksums, int32, st.binary(max_size=300)))
def test_a_put_comes_back_as_it_was(put):
    length, command = encode_put_record(put)
    assert int.from_bytes(length, "big") == len(command)
    assert decode_command(bytes(command)) == put


@given(st.builds(Operation, keys, st.sampled_from(OperationType), st.booleans(), st.just(0)))
def test_an_operation_comes_back_as_it_was(operation):
    if operation.type.is_xa is not is_xa(operation.tx_key):
        with pytest.raises(RemoteProtocolError, match=operation.type.name):
            decode_command(bytes(encode_operation_record(operation)[1]))
        return
    _, command, _ = encode_operation_record(operation)
    assert decode_command(bytes(command)) == operation


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_understood(data):
    with suppress(RemoteProtocolError):  # whatever else it raises is a bug
        decode_command(data)


def test_files_are_listed_by_number_and_others_left_out(tmp_path):
    for name in ("redo.10", "redo.9", "redo.1.bak", "redo.", "redo.01", "checkpoint.1", "heuristic.log"):
        (tmp_path / name).touch()
    assert list(numbered_files(REAL_FILES, str(tmp_path), REDO_PREFIX)) == [9, 10]
