"""A segment that the Java broker wrote opens, reads, and can be written again to the same bytes."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from metaq.broker.store.batch import encode_puts
from metaq.protocol.record import RecordHeader, attribute_of, decode_attribute, iter_headers, payload_start

GOLDEN = Path(__file__).resolve().parents[3] / "data" / "golden" / "store"
DESCRIPTION: dict[str, Any] = json.loads((GOLDEN / "store.json").read_text())
RAW = (GOLDEN / DESCRIPTION["file"]).read_bytes()


@pytest.fixture
def java_log(harness):
    directory = Path(harness.path) / DESCRIPTION["partition_directory"]
    directory.mkdir(parents=True)
    shutil.copyfile(GOLDEN / DESCRIPTION["file"], directory / DESCRIPTION["file"])
    topic, _, partition = DESCRIPTION["partition_directory"].rpartition("-")
    return harness.open().get(topic, int(partition))


def test_java_segment_opens_without_any_repair_and_its_index_points_to_its_records(harness, java_log):
    assert java_log.visible_end == DESCRIPTION["size"] == len(RAW)
    assert java_log.segments.message_count == len(DESCRIPTION["records"]) > 5
    assert not harness.report().notable
    assert java_log.segments.largest_id_below(1 << 62) == 0
    units = java_log.lookup.units(0, 1 << 30)
    for name, described in (("offset", "offset"), ("id", "msgId"), ("size", "record_length")):
        assert units[name].tolist() == [record[described] for record in DESCRIPTION["records"]]
    assert (units["time_ms"] < 0).all()


def test_every_java_record_is_read_as_described(java_log):
    data = java_log.segments.snapshot().read(0, 1 << 30)
    headers = list(iter_headers(data))
    assert len(headers) == len(DESCRIPTION["records"])
    for header, expected in zip(headers, DESCRIPTION["records"], strict=True):
        assert describe(data, header) == {name: expected[name] for name in describe(data, header)}


def describe(data: bytes, header: RecordHeader) -> dict[str, object]:
    body = data[header.start + 20 : header.end]
    payload = body[payload_start(body, header.flag) :]
    return {
        "offset": header.start,
        "record_length": header.end - header.start,
        "body_length": header.length,
        "checksum": header.checksum,
        "msgId": header.id,
        "flag": header.flag,
        "attribute": decode_attribute(attribute_of(body, header.flag), header.flag).attribute,
        "payload_length": len(payload),
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
    }


def test_the_same_puts_with_the_same_ids_make_the_same_file(harness):
    headers = list(iter_headers(RAW))
    for header in headers:
        body = RAW[header.start + 20 : header.end]
        puts = [(header.flag, header.checksum, body)]
        data, units = encode_puts(puts, harness.log.end_offset, [header.id], 0)
        assert harness.log.append(data, units) == header.start
    harness.store.close()
    assert harness.data_file().read_bytes() == RAW
    assert hashlib.sha256(RAW).hexdigest() == DESCRIPTION["sha256"]
    assert harness.data_file().name == DESCRIPTION["file"]


def test_opening_and_closing_changes_no_byte_of_a_java_segment(harness, java_log):
    path = Path(java_log.segments[0].path)
    harness.store.close()
    assert path.read_bytes() == RAW
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".index", ".meta"]
