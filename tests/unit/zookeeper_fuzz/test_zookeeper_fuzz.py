"""The fuzz's own parts: what counts as the same, what is drawn, and how a difference gets short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.zookeeper_fuzz.answers import Context, Item, answer, event
from tests.zookeeper_fuzz.generator import Generator
from tests.zookeeper_fuzz.jute import OpCode, encode
from tests.zookeeper_fuzz.operations import Operation
from tests.zookeeper_fuzz.rules import ZxidOrder, difference, events_sorted
from tests.zookeeper_fuzz.run import shrink

CONTEXT = Context("/root", {0x55: 0}, {})


def _event(path: str, zxid: int) -> Item:
    return Item(("event", 2, 3, path), (zxid,))


def test_zxids_are_the_same_by_their_order():
    order = ZxidOrder()
    assert order.same(10, 100)
    assert order.same(20, 107)
    assert order.same(15, 105)
    assert order.same(10, 100)
    assert not order.same(10, 107)
    assert not order.same(12, 106)
    assert not order.same(20, 108)
    assert order.same(-1, -1)
    assert not order.same(0, 100)


def test_answers_differ_by_what_is_said_by_number_and_by_zxid():
    said = [Item(("answer", 1, 0), (5,))]
    order = ZxidOrder()
    assert difference(said, [Item(("answer", 1, 0), (7,))], order) is None
    assert difference(said, [Item(("answer", 1, 0), (8,))], order) == (
        "zxid 0 of item 0: 5 (known, behind 0 others) and 8 (new, behind 1 others)"
    )
    assert difference(said, [Item(("answer", 1, -101), (7,))], order) == "item 0"
    assert difference(said, [Item(("answer", 1, 0), (7, 7))], order) == "zxids of item 0"
    assert difference(said, [], order) == "1 items and 0"


def test_only_events_of_the_end_of_a_session_are_sorted():
    end = [_event("/b", 9), _event("/a", 9)]
    asked = [_event("/d", 10), _event("/c", 10)]
    said = Item(("answer", 1, 0), (10,))
    assert events_sorted([*end, *asked, said], {10}) == [*reversed(end), *asked, said]


def test_what_a_client_sees_is_told_relative_to_the_run():
    stat = bytes(8 * 4) + bytes(12) + (0x55).to_bytes(8) + bytes(8) + bytes(8)
    header = (7).to_bytes(4) + (3).to_bytes(8) + bytes(4)
    text = b"\0\0\0\x07/root/a"
    created = answer(OpCode.CREATE2, header + text + stat, CONTEXT)
    assert created == Item(("answer", 7, 0, ("/a", ("stat", 0, 0, 0, "session 0", 0, 0))), (3, 0, 0, 0), OpCode.CREATE2)
    heard = event(b"\xff" * 4 + (3).to_bytes(8) + bytes(4) + (1).to_bytes(4) + (3).to_bytes(4) + text, CONTEXT)
    assert heard == Item(("event", 1, 3, "/a"), (3,))


def test_a_time_that_is_not_the_transactions_is_told():
    header = (7).to_bytes(4) + (3).to_bytes(8) + bytes(4)
    stats = [
        (5).to_bytes(8) + (5).to_bytes(8) + created.to_bytes(8) + (100).to_bytes(8) + bytes(12 + 8 + 8 + 8)
        for created in (100, 101)
    ]
    answers = [answer(OpCode.EXISTS, header + stat, CONTEXT).plain for stat in stats]
    assert len(answers[0][3][0]) + 1 == len(answers[1][3][0])


def test_what_does_not_parse_is_compared_as_it_stands():
    header = (7).to_bytes(4) + (3).to_bytes(8) + bytes(4)
    assert answer(OpCode.EXISTS, header + b"abc", CONTEXT).plain == ("answer", 7, 0, "not understood", b"abc")
    assert answer(OpCode.DELETE, header + b"abc", CONTEXT).plain == ("answer", 7, 0, (), b"abc")


@pytest.mark.parametrize(
    ("part", "raw"),
    [
        (("path", "/a"), b"\0\0\0\x07/root/a"),
        (("path", "/"), b"\0\0\0\x05/root"),
        (("path", "a"), b"\0\0\0\x01a"),
        (("path", None), b"\xff\xff\xff\xff"),
        (("acls", ((31, "world", None),)), b"\0\0\0\1\0\0\0\x1f\0\0\0\5world\xff\xff\xff\xff"),
        (("bool", True), b"\1"),
        (("long", -2), b"\xff" * 7 + b"\xfe"),
    ],
)
def test_parts_become_bytes(part: tuple, raw: bytes):
    assert encode((part,), "/root") == raw


def test_damage_is_done_where_it_says():
    body = b"0123456789"
    assert Operation(0, 1, (), (("cut", 0.5, b""),)).damaged(body) == b"01234"
    assert Operation(0, 1, (), (("replace", 0.2, b"xy"),)).damaged(body) == b"01xy456789"
    assert Operation(0, 1, (), (("insert", 0.0, b"x"), ("cut", 0.5, b""))).damaged(body) == b"x0123"


def _drawn(seed: int, count: int) -> list[Operation]:
    """All as if no server ever refused."""
    generator = Generator(seed)
    drawn = []
    for _ in range(count):
        operation = generator.draw()
        drawn.append(operation)
        if operation.opcode == OpCode.CONNECT:
            generator.observe(operation, [Item(("connected", 0, 1, 16, b"", "session 0"))])
        elif operation.opcode in (OpCode.ABANDON, OpCode.CLOSE_SESSION, OpCode.RAW):
            generator.observe(operation, [Item(("closed",))])
    return drawn


def test_a_seed_is_a_list_of_operations():
    assert _drawn(3, 300) == _drawn(3, 300)
    assert _drawn(3, 300) != _drawn(4, 300)


def test_every_request_that_there_is_is_drawn():
    numbers = Counter(operation.opcode for operation in _drawn(1, 20_000))
    known = {number for name, number in vars(OpCode).items() if name.isupper()}
    assert known - set(numbers) == {OpCode.DELETE_CONTAINER, OpCode.CREATE_SESSION, OpCode.EXPIRE}


def test_a_list_is_as_short_as_it_can_be():
    tried = []

    def differs(operations: Sequence[Operation]) -> bool:
        tried.append(operations)
        return {3, 17, 90} <= {operation.slot for operation in operations}

    short = shrink([Operation(slot, 1) for slot in range(200)], differs)
    assert [operation.slot for operation in short] == [3, 17, 90]
    assert len(tried) < 100
