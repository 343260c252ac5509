"""Many puts of one read are the same puts as one by one, wherever they are cut and whatever their bodies look like."""

import random

import pytest

from metaq.protocol.limits import INT32_MAX, INT32_MIN
from metaq.protocol.put_run import LEAST_PUTS, parse_put_run
from metaq.protocol.requests import RequestReader, one_by_one
from metaq.protocol.text import Put, Version, encode_put

PUT = b"put t 1 3 0 5 7\r\nabc"
LIKE_A_HEADER = b"put t 0 5 0 1 2\r\n"


def encoded(puts):
    return b"".join(encode_put(put.topic, put.partition, put.flag, put.checksum, put.opaque, put.body) for put in puts)


def random_puts(rng, count):
    """Puts of the usual form, with bodies that are empty, hold whole headers and line ends, or are larger."""
    bodies = [b"", b"\r\n", LIKE_A_HEADER, LIKE_A_HEADER + b"12345", b"put ", rng.randbytes(300)]
    return [
        Put(
            rng.choice(["t", "中", "other-topic"]),
            rng.randrange(2000),
            rng.choice([0, 1, 3]),
            rng.choice([0, 1, INT32_MAX]),
            None,
            rng.choice([INT32_MIN, INT32_MAX, -1, number]),
            rng.choice(bodies),
        )
        for number in range(count)
    ]


def test_a_run_has_the_puts_it_was_made_of():
    puts = [Put("t", number, 0, 5, None, number + INT32_MIN, b"abc") for number in range(LEAST_PUTS)]
    run, end = parse_put_run(encoded(puts))
    assert run is not None
    assert (list(run.puts()), end, run.body_bytes) == (puts, len(encoded(puts)), 3 * LEAST_PUTS)


@pytest.mark.parametrize("seed", range(30))
def test_requests_are_the_same_in_whatever_pieces_they_come(seed):
    rng = random.Random(seed)
    puts = random_puts(rng, 3 * LEAST_PUTS)
    raw = encoded(puts)
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(raw) + 1), k=rng.randrange(1, 4)))
        reader = RequestReader()
        pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        assert list(one_by_one(request for piece in pieces for request in reader.receive(piece))) == puts
        assert reader.buffered_bytes == 0


@pytest.mark.parametrize(
    "end",
    [b"", b"version 1\r\n", PUT[:-1], b"put t 1 3 0 5", b"put t 1 3 0 5 key 7\r\nabc", b"put t -1 3 0 5 7\r\nabc"],
)
def test_a_run_ends_where_something_else_follows(end):
    run, position = parse_put_run(PUT * LEAST_PUTS + end)
    assert run is not None
    assert (len(run.bodies), position) == (LEAST_PUTS, len(PUT) * LEAST_PUTS)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"version 1\r\n" + PUT * LEAST_PUTS),
        *(PUT * (LEAST_PUTS - 1), PUT * (LEAST_PUTS - 1) + b"version 1\r\n" + PUT),
        (b"put t 1 5000 0 5 7\r\n" + bytes(5000)) * LEAST_PUTS,
        PUT * LEAST_PUTS + b"put t 1 0 0 2147483648 7\r\n",
        PUT * LEAST_PUTS + b"put t 1 0 0 5 2147483648\r\n",
        PUT * LEAST_PUTS + b"put t 1 0 0 5 -2147483649\r\n",
    ],
)
def test_no_run(raw):
    assert parse_put_run(raw) == (None, 0)


def test_what_java_refuses_behind_good_puts_still_ends_the_connection():
    reader = RequestReader()
    requests = reader.receive(PUT * LEAST_PUTS + b"version 1\r\n" + b"put t 1 0 0 5 2147483648\r\n")
    assert list(one_by_one(requests)) == [Put("t", 1, 0, 5, None, 7, b"abc")] * LEAST_PUTS + [Version(1)]
    assert reader.failure is not None
