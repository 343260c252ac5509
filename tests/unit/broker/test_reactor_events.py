"""How many descriptors one iteration of the broker's reactor serves."""

import socket

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.selectreactor import SelectReactor

from metaq.broker.runtime.reactor import serves_few_at_once


class _Reader:
    """One end of a pair of sockets, whose other end has sent a byte."""

    def __init__(self, served: list[int]) -> None:
        self.served = served
        self.ours, theirs = socket.socketpair()
        theirs.send(b"x")
        theirs.close()

    def fileno(self) -> int:
        return self.ours.fileno()

    def logPrefix(self) -> str:  # noqa: N802
        return "reader"

    def doRead(self) -> None:  # noqa: N802
        self.served.append(self.fileno())
        self.ours.recv(10)


def test_an_iteration_serves_few_descriptors_and_the_next_ones_the_others() -> None:
    reactor = serves_few_at_once(EPollReactor(), 4)
    served: list[int] = []
    readers = [_Reader(served) for _ in range(10)]
    for reader in readers:
        reactor.addReader(reader)
    counts = []
    for _ in range(3):
        before = len(served)
        reactor.doPoll(0)
        counts.append(len(served) - before)
    assert counts == [4, 4, 4]  # each has a byte and then its end
    assert set(served[:10]) == {reader.fileno() for reader in readers}, "each is served once before one is served twice"
    for reader in readers:
        reactor.removeReader(reader)
        reader.ours.close()


def test_a_reactor_without_epoll_stays_as_it_is() -> None:
    reactor = SelectReactor()
    before = dict(vars(reactor))
    assert serves_few_at_once(reactor, 4) is reactor
    assert vars(reactor) == before
