"""What is recorded and cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .broker_life import BrokerLife, BrokerWork
from .cuts import Faults, Life, Workload
from .processes import PROCESS_WORK, record_process
from .shim import Shim
from .store_life import StoreLife, StoreWork
from .zookeeper_life import ZooKeeperLife, ZooKeeperWork

__all__ = ["WORKLOADS"]

_PLAIN = Faults()
_KILL = Faults(kill=True)
_SYNC = Faults(sync=True)
_WRITE = Faults(write=True)


def _store(name: str, work: StoreWork, *faults: Faults, changes: int = 120) -> Workload:
    def make(directory: Path, seed: object, shim: Shim, number: int) -> Life:
        return StoreLife(directory, work, seed, shim, number)

    return Workload(name, make, faults or (_PLAIN,), changes)


def _broker(name: str, work: BrokerWork, *faults: Faults, changes: int = 150) -> Workload:
    def make(directory: Path, seed: object, shim: Shim, number: int) -> Life:
        return BrokerLife(directory, work, seed, shim, number)

    return Workload(name, make, faults or (_PLAIN,), changes)


def _zookeeper(name: str, *faults: Faults, changes: int = 60) -> Workload:
    def make(directory: Path, seed: object, shim: Shim, number: int) -> Life:
        return ZooKeeperLife(directory, ZooKeeperWork(), seed, shim)

    return Workload(name, make, faults or (_PLAIN,), changes)


def _process(name: str, *faults: Faults) -> Workload:
    return replace(_broker(name, PROCESS_WORK, *faults), record_process=record_process)


_ROLLS = 700
"""Bytes of a segment that a few messages fill."""

WORKLOADS = {
    each.name: each
    for each in (
        _store("sync-1", StoreWork(1)),
        _store("sync-1-rolls", StoreWork(1, segment_bytes=_ROLLS, large=False)),
        _store("sync-2-rolls", StoreWork(2, segment_bytes=_ROLLS)),
        _store("sync-3", StoreWork(3)),
        _store("sync-3-journal", StoreWork(4, segment_bytes=4000, journal_bytes=3000, actions=80)),
        _store("sync-70", StoreWork(70, segment_bytes=_ROLLS, actions=120, large=False, journal_bytes=20000)),
        _store("fast-2", StoreWork(0, 2)),
        _store("fast-2-rolls", StoreWork(0, 2, segment_bytes=_ROLLS)),
        _store("mixed", StoreWork(3, 2, segment_bytes=_ROLLS, journal_bytes=5000)),
        _store("retention", StoreWork(1, 1, segment_bytes=300, keep_bytes=900, large=False, actions=80)),
        _store(
            "retention-journal",
            StoreWork(4, 1, segment_bytes=300, keep_bytes=3000, journal_bytes=5000, large=False, actions=120),
        ),
        _store("killed", StoreWork(2, 1, segment_bytes=_ROLLS), _KILL, _KILL, _PLAIN),
        _store("killed-journal", StoreWork(4, segment_bytes=4000, journal_bytes=5000), _KILL, _KILL, _PLAIN),
        _store("restarted", StoreWork(3, 1, segment_bytes=2000), _PLAIN, _PLAIN, _PLAIN),
        _store("sync-fails", StoreWork(2, 1), _SYNC, _PLAIN, changes=60),
        _store("sync-fails-rolls", StoreWork(1, 1, segment_bytes=2000), _SYNC, _PLAIN, changes=60),
        _store("sync-fails-journal", StoreWork(4, checkpoints=30), _SYNC, _PLAIN, changes=160),
        _store("write-fails", StoreWork(3, 1, segment_bytes=2000), _WRITE, _PLAIN),
        _process("process", _PLAIN, _PLAIN),
        _process("process-sync-fails", _SYNC, _PLAIN),
        _broker("tx", BrokerWork()),
        _broker("tx-rolls", BrokerWork(segment_bytes=_ROLLS)),
        _broker("tx-killed", BrokerWork(), _KILL, _KILL, _PLAIN),
        _broker("tx-restarted", BrokerWork(), _PLAIN, _PLAIN, _PLAIN),
        _broker("tx-sync-fails", BrokerWork(), _SYNC, _PLAIN, changes=80),
        _broker("tx-write-fails", BrokerWork(), _WRITE, _PLAIN),
        _zookeeper("zookeeper", _PLAIN, _PLAIN),
        _zookeeper("zookeeper-killed", _KILL, _KILL, _PLAIN),
        _zookeeper("zookeeper-sync-fails", _SYNC, _PLAIN),
        _zookeeper("zookeeper-write-fails", _WRITE, _PLAIN),
    )
}
