"""Traces of whole brokers: processes of their own, with their reactor and their threads as users run them."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from unittest import mock

from tests.broker_process import RunningBroker

from .broker_life import INI, BrokerWork, Conversations
from .cuts import Faults
from .shim import mark_in

__all__ = ["PROCESS_WORK", "record_process"]

PROCESS_WORK = BrokerWork(segment_bytes=3000)
_PEERS = 6
_TALKS = 12
"""Of each peer: some puts, or a transaction."""


def record_process(directory: Path, seed: str, number: int, faults: Faults, trace: Path, lost: Path | None) -> None:
    """Have a broker serve some peers at once, and stop it."""
    rng = random.Random(seed)
    variables = {"POWER_ROOT": os.path.realpath(directory), "POWER_TRACE": str(trace)}
    if faults.sync:
        variables["POWER_FAIL_SYNC"] = str(rng.randint(3, 60))
    if lost is not None:
        variables["POWER_LOST"] = str(lost)
    ini = INI.format(data=directory, segment_bytes=PROCESS_WORK.segment_bytes, port=0)
    with mock.patch.dict(os.environ, variables):
        broker = RunningBroker(trace.parent, ini, deadline=60.0)
    with broker:
        peers = [_Peer(broker, random.Random(f"{seed} {each}"), 10 * number + each, trace) for each in range(_PEERS)]
        for peer in peers:
            peer.start()
        for peer in peers:
            peer.join()
        broker.stop()
    for peer in peers:
        if peer.failure is not None:
            raise peer.failure


class _Peer(threading.Thread):
    def __init__(self, broker: RunningBroker, rng: random.Random, number: int, trace: Path) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._connection = broker.connect()
        self._rng = rng
        self._trace = trace
        self._says = Conversations(rng, self._mark, number, PROCESS_WORK.sizes)

    def _mark(self, **values: object) -> None:
        mark_in(self._trace, values)

    def run(self) -> None:
        try:
            with self._connection:
                for _ in range(_TALKS):
                    self._talk()
        except Exception as error:  # raised by the thread that started us
            self.failure = error

    def _talk(self) -> None:
        talk = self._says.transaction() if self._rng.random() < 0.5 else self._says.plain()
        answer = None
        while True:
            try:
                request = talk.send(answer)
            except StopIteration:
                return
            answer = self._connection.ask(request)
