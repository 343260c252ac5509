"""Where gevent or eventlet has replaced what the client waits with it says so at once."""

from __future__ import annotations

import _thread
import queue
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaq import (
    Consumer,
    DeadLetters,
    LocalMessageStore,
    OrderedProducer,
    PartitionReader,
    Producer,
    SharedConsumer,
    TopicBrowser,
    TopicPartition,
    errors,
)

NOWHERE = "127.0.0.1:1"

MAKERS: list[Callable[[Path], Any]] = [
    lambda _: Producer(NOWHERE),
    lambda _: Producer.direct(NOWHERE),
    lambda path: OrderedProducer(NOWHERE, partitions={"t": {0: 1}}, store=LocalMessageStore(path / "saved.db")),
    lambda _: Consumer(NOWHERE, group="g", topics=["t"]),
    lambda _: SharedConsumer(NOWHERE, group="g", topics=["t"]),
    lambda _: PartitionReader(NOWHERE, TopicPartition("t", 0, 0)),
    lambda _: TopicBrowser(NOWHERE, "t"),
    lambda _: DeadLetters(NOWHERE, group="g"),
]


def replaced(by: str) -> Any:
    def found(*_: object) -> None:
        raise AssertionError("it was used")

    found.__module__ = by
    return found


@pytest.mark.parametrize("make", MAKERS)
def test_every_client_refuses_patched_sockets(monkeypatch, tmp_path, make):
    monkeypatch.setattr(socket, "socket", replaced("gevent._socket3"))
    with pytest.raises(errors.ClientError, match=r"^gevent has patched socket, with which this client does not work"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "by", "told"),
    [
        (_thread, "start_new_thread", "gevent.thread", "gevent has patched thread"),
        (queue, "SimpleQueue", "gevent._gevent_cqueue", "gevent has patched queue"),
        (select, "select", "eventlet.green.select", "eventlet has patched select"),
    ],
)
def test_so_it_does_with_threads_select_and_queues(monkeypatch, tmp_path, module, name, by, told):
    monkeypatch.setattr(module, name, replaced(by))
    with pytest.raises(errors.ClientError, match=told):
        MAKERS[0](tmp_path)


def test_another_replacement_is_none_of_our_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "select", replaced("socks"))
    Producer.direct(NOWHERE).close()
