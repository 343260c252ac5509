"""One life of a broker with transactions: real handlers and files, peers that talk 1.x's text protocol."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from metaq.broker.assembly.broker import Broker, WorkerThreads
from metaq.broker.assembly.kinds import KINDS
from metaq.broker.assembly.verbs import make_gate
from metaq.broker.configuration.server_ini import parse_config
from metaq.broker.configuration.sources import ConfigTexts
from metaq.broker.network.session import Session
from metaq.broker.store.store import Store, TopicStoreConfig
from metaq.broker.transactions import log as log_module
from metaq.broker.transactions import writer as writer_module
from metaq.protocol.record import checksum
from metaq.protocol.text import encode_put
from tests.unit.broker.harness import NOW, Peer
from tests.unit.broker.transactions.conversation import tx, tx_put

from .history import Broken, History, body_of, named_records
from .promises import Promises
from .shim import Shim
from .steps import SteppedThreads
from .store_life import check_invariants_of, edges_of, read_everything

__all__ = ["INI", "PARTITIONS", "BrokerLife", "BrokerWork", "Conversations"]

INI = """
[system]
brokerId=0
hostName=127.0.0.1
serverPort={port}
numPartitions=1
dataPath={data}
unflushThreshold=4
unflushInterval=10000
maxSegmentSize={segment_bytes}
maxTransferSize=1048576
flushTxLogAtCommit=1
checkpointInterval=3000
maxCheckpoints=2
[zookeeper]
zk.zkEnable=false
[topic=fast]
numPartitions=2
[topic=sync]
numPartitions=2
unflushThreshold=0
"""
PARTITIONS = (("sync", 0), ("sync", 1), ("fast", 0), ("fast", 1))
_Talk = Generator[bytes, Any, bool | None]


class Conversations:
    """What peers say: generators of requests, which are sent the answers. What they learn goes into the trace."""

    def __init__(self, rng: random.Random, mark: Callable[..., None], number: int, sizes: Sequence[int]) -> None:
        """number: makes names and keys different from all others'."""
        self._rng = rng
        self._mark = mark
        self._number = number
        self._sizes = sizes
        self._named = 0

    def _message(self) -> tuple[str, int, str, bytes]:
        self._named += 1
        name = f"m{self._number}.{self._named}"
        topic, partition = self._rng.choice(PARTITIONS)
        return topic, partition, name, body_of(name, self._rng.choice(self._sizes))

    def plain(self) -> _Talk:
        """Some puts, one after the other."""
        for _ in range(self._rng.randint(1, 4)):
            topic, partition, name, body = self._message()
            self._mark(kind="plain", partition=f"{topic}-{partition}", name=name)
            answer = yield encode_put(topic, partition, 0, checksum(body), 1, body)
            if answer.code == 200 and topic == "sync":
                self._mark(kind="plain_done", name=name)
        return None

    def transaction(self) -> _Talk:
        """A transaction, which may be left open or prepared."""
        self._named += 1
        xa = self._rng.random() < 0.5
        key = f"XID:1:{self._number:02x}{self._named:04x}:0b:host" if xa else f"TX:s{self._number}:{self._named}"
        answer = yield tx(key, "BEGIN")
        if answer.code != 200:
            return None
        for _ in range(self._rng.choice((1, 2, 5, 9))):
            topic, partition, name, body = self._message()
            answer = yield tx_put(key, topic, partition, body)
            if answer.code != 200:
                return None
            self._mark(kind="tx_put", key=key, partition=f"{topic}-{partition}", name=name)
        if xa:
            done = yield from self.end(key, "PREPARE")
            if not done or self._rng.random() < 0.2:
                return None
        verb = "COMMIT_TWO_PHASE" if xa else "COMMIT_ONE_PHASE"
        return (yield from self.end(key, self._rng.choice((verb, verb, verb, "ROLLBACK"))))

    def end(self, key: str, verb: str) -> Generator[bytes, Any, bool]:
        """Whether the broker has done it."""
        self._mark(kind="tx_asked", key=key, verb=verb)
        answer = yield tx(key, verb)
        if answer.code == 200:
            self._mark(kind="tx_done", key=key, verb=verb)
        return bool(answer.code == 200)


@dataclass(frozen=True, slots=True)
class BrokerWork:
    """redo_bytes: of a redo file before the next one follows. sizes: of messages' bodies. key_block_bytes: see
    Store.
    """

    segment_bytes: int = 1 << 20
    actions: int = 150
    redo_bytes: int = 2000
    sizes: tuple[int, ...] = (20, 40, 100, 700, 3000)
    peers: int = 3
    key_block_bytes: int = 512


class _Talker:
    """A connection, what it has to say, and whether it waits for an answer."""

    def __init__(self, peer: Peer, talk: _Talk) -> None:
        self.peer = peer
        self.talk = talk
        self.waits = False


class BrokerLife:
    """Lives in a process of its own, which ends with it."""

    def __init__(self, directory: Path, work: BrokerWork, seed: object, shim: Shim, number: int = 0) -> None:
        self._work = work
        self._rng = random.Random(f"{seed}")
        self._shim = shim
        self._conversations = Conversations(self._rng, shim.mark, number, work.sizes)
        writer_module.MAX_REDO_BYTES = work.redo_bytes
        log_module._STATE_BYTES = work.redo_bytes
        self.reactor = Clock()
        self.threads = SteppedThreads(random.Random(f"threads {seed}"), shim)
        ini = INI.format(data=directory, segment_bytes=work.segment_bytes, port=8123)
        self.config = parse_config(ConfigTexts(ini.encode(), b""))
        self.store = Store(
            self.config.data_paths,
            self._store_config,
            kinds=KINDS,
            run_in_thread=self.threads.run_in_thread,
            run_journal=self.threads.run_journal,
            clock=lambda: NOW,
            monotonic=self.reactor.seconds,
            key_block_bytes=work.key_block_bytes,
            disk_reserve=0,
        )
        self._talkers: list[_Talker] = []

    def _store_config(self, name: str) -> TopicStoreConfig:
        topic = self.config.topic(name) or self.config.system
        return TopicStoreConfig(self.config.max_segment_size, topic.unflush_threshold, topic.unflush_interval_ms)

    def open(self) -> None:
        self.store.open()
        self.broker = Broker(
            self.config,
            self.store,
            reactor=self.reactor,
            threads=WorkerThreads(self.threads.run_in_thread),
            clock=lambda: NOW,
            rng=random.Random(1),
        )
        self.broker.transactions.open()
        self._gate = make_gate(self.broker)
        self._shim.mark(kind="opened")

    def check(self, history: History) -> None:
        """Whether everything that was promised is there. Raises Broken."""
        self.threads.run_all()  # what the replay has appended becomes visible
        found = {}
        for log in self.store.logs():
            name = f"{log.topic}-{log.partition}"
            if log.read_only is not None:
                raise Broken(f"{name} is read-only after the start: {log.read_only}")
            records = named_records(name, 0, read_everything(name, log), edges_of(log, history))
            found[name] = [each for _, each in records]
            check_invariants_of(name, log)
        Promises(history.others).check(found, self.broker.transactions.recover(None))

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, actions: int | None = None) -> None:
        self._talkers = [self._talker(self._rng.random() < 0.5) for _ in range(self._work.peers)]
        for key in self.broker.transactions.recover(None):
            if self._rng.random() < 0.7:
                verb = self._rng.choice(("COMMIT_TWO_PHASE", "ROLLBACK"))
                self._talkers.append(_Talker(self._peer(), self._conversations.end(key, verb)))
        for _ in range(self._work.actions if actions is None else actions):
            self._act()
            for _ in range(self._rng.choice((0, 0, 1, 2, 5, 20))):
                self.threads.step()

    def finish(self) -> None:
        self.threads.run_all()
        for talker in self._talkers:
            self._hear(talker)

    def close(self) -> None:
        self.broker.transactions.close()
        self.store.close()

    def _act(self) -> None:
        chance = self._rng.random()
        if chance < 0.05:
            self.reactor.advance(self._rng.choice((0.25, 1.1, 6.0)))
            self.broker.transactions.tick()
            self.store.tick()
        elif chance < 0.08:
            for log in self.store.logs():
                log.checkpoint()
        elif chance < 0.12:
            self.threads.run_all()
        else:
            number = self._rng.randrange(len(self._talkers))
            if not self._go_on(self._talkers[number]):
                self._talkers[number] = self._talker(self._rng.random() < 0.6)

    def _peer(self) -> Peer:
        return Peer(Session(self._gate, self.broker))

    def _talker(self, transaction: bool) -> _Talker:
        says = self._conversations
        return _Talker(self._peer(), says.transaction() if transaction else says.plain())

    def _go_on(self, talker: _Talker) -> bool:
        """False if there is nothing more to say."""
        answer = self._hear(talker)
        if talker.waits:
            return True
        try:
            request = talker.talk.send(answer)
        except StopIteration:
            return False
        talker.peer.send(request)
        talker.waits = True
        return True

    def _hear(self, talker: _Talker) -> Any:
        """The answer that has come, if any."""
        answers = talker.peer.answers() if talker.waits else []
        if not answers:
            return None
        talker.waits = False
        return answers[0]
