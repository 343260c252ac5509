"""Read a backlog that is not in the page cache while producers and hot readers continue: `python -m bench.backlog`.
Prints one JSON document.

Phases of `--seconds` alternate. In each, a producer sends at full speed and a probe sends 1,000 messages/s; in every
second phase, `--readers` consumer groups also read the backlog from its start. In the last phase only the probe and
these cold readers run. Before each phase the backlog is removed from the page cache, so it is cold even if memory is
larger than the backlog.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaq import Consumer, Producer

from .loops import STAMP, percentiles
from .processes import Server, Worker, free_port
from .server_ini import server_ini

ROOT = Path(__file__).resolve().parents[1]
METAQ = (sys.executable, "-m", "metaq")
SIZE = 1024
BATCH = 1000
WINDOW = 4000
PROBE_PER_SECOND = 1000
PARTITIONS = 4
WARM_UP_SECONDS = 1.0
START_SECONDS = 60.0

BACKLOG, LOAD, PROBE = "backlog", "load", "probe"


# --- load generators, each in a process of its own --------------------------------------------------------------------


def fill(zk: str, gigabytes: float) -> dict[str, Any]:
    """Send the backlog, and return the number of messages and the seconds taken."""
    payloads = [os.urandom(SIZE)] * BATCH
    count = int(gigabytes * 2**30 / (SIZE + 20) / BATCH) * BATCH
    started = time.perf_counter()
    with Producer(zk) as producer:
        for _ in range(0, count, BATCH):
            producer.send_batch(BACKLOG, payloads)
    return {"messages": count, "seconds": time.perf_counter() - started}


def produce(zk: str, seconds: float) -> dict[str, Any]:
    """Send at full speed from one thread, with at most WINDOW unanswered sends."""
    data = os.urandom(SIZE)
    unanswered: deque[Any] = deque()
    with Producer(zk) as producer:
        producer.send(LOAD, data)
        count, begun, measured = 0, time.perf_counter() + WARM_UP_SECONDS, 0
        while (now := time.perf_counter()) < begun + seconds:
            if now < begun:
                measured = count
            for _ in range(100):
                if len(unanswered) >= WINDOW:
                    unanswered.popleft().result()
                unanswered.append(producer.send_async(LOAD, data))
                count += 1
        elapsed = time.perf_counter() - begun
        for each in unanswered:
            each.result()
    return {"rate": (count - measured) / elapsed}


def read_cold(zk: str, group: str, seconds: float) -> dict[str, Any]:
    """Read the backlog from its start."""
    count = 0
    with Consumer(zk, group=group, topics=[BACKLOG], start="earliest") as consumer:
        end = time.perf_counter() + WARM_UP_SECONDS + seconds
        while time.perf_counter() < end:
            count += len(consumer.poll(max_messages=BATCH, timeout=0.1))
    return {"megabytes_per_second": count * SIZE / 1e6 / (WARM_UP_SECONDS + seconds)}


def probe(zk: str, group: str, seconds: float) -> dict[str, Any]:
    """Measure end-to-end latencies while sending PROBE_PER_SECOND messages a second."""
    latencies: list[int] = []
    ready, stop = threading.Event(), threading.Event()

    def receive() -> None:
        with Consumer(zk, group=group, topics=[PROBE], start="latest") as consumer:
            while not stop.is_set():
                for message in consumer.poll(max_messages=BATCH, timeout=0.1):
                    number, sent = STAMP.unpack_from(message.payload)
                    if number > 0:
                        latencies.append(time.monotonic_ns() - sent)
                    elif number < 0 and sent in mine:
                        ready.set()

    mine: set[int] = set()
    receiver = threading.Thread(target=receive)
    receiver.start()
    rest = bytes(SIZE - STAMP.size)
    try:
        with Producer(zk) as producer:
            deadline = time.perf_counter() + START_SECONDS
            while not ready.wait(0.05):
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"the probe's consumer got nothing within {START_SECONDS:.0f} s")
                mine.add(stamp := time.monotonic_ns())
                producer.send(PROBE, STAMP.pack(-1, stamp) + rest)
            begun = time.perf_counter()
            for number in range(int((WARM_UP_SECONDS + seconds) * PROBE_PER_SECOND)):
                if (pause := begun + number / PROBE_PER_SECOND - time.perf_counter()) > 0:
                    time.sleep(pause)
                counted = number >= WARM_UP_SECONDS * PROBE_PER_SECOND
                producer.send_async(PROBE, STAMP.pack(number if counted else 0, time.monotonic_ns()) + rest)
            time.sleep(0.5)
    finally:
        stop.set()
        receiver.join()
    return percentiles(latencies)


ROLES: dict[str, Callable[..., dict[str, Any]]] = {"fill": fill, "produce": produce, "cold": read_cold, "probe": probe}


def work() -> None:
    """Execute commands, one per line: a role and its arguments as JSON."""
    for line in sys.stdin:
        role, *arguments = json.loads(line)
        try:
            print(json.dumps(ROLES[role](*arguments)), flush=True)
        except Exception as error:
            print(json.dumps({"error": repr(error)}), flush=True)


# --- the broker and its memory ----------------------------------------------------------------------------------------


class MemoryGroup:
    """A Linux control group (cgroup, version 1 or 2) that limits the broker's memory, including its page cache. Needs
    root.
    """

    def __init__(self, limit: int) -> None:
        version_1 = Path("/sys/fs/cgroup/memory")
        self._path = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"metaq-backlog-{os.getpid()}"
        self._path.mkdir()
        name = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
        (self._path / name).write_text(str(limit))

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the group, after its processes have ended."""
        self._path.rmdir()


def memory(pid: int) -> dict[str, float]:
    """Return a process's memory in MiB: the peak of the resident memory, and the present resident memory that is not
    mapped from a file.
    """
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        name: int(fields[key].split()[0]) / 1024 for name, key in (("peak_mb", "VmHWM"), ("anonymous_mb", "RssAnon"))
    }


def cool(data: Path) -> None:
    """Remove the backlog and its indexes from the page cache."""
    for path in (*data.glob(f"{BACKLOG}-*/*.meta"), *data.glob(f"{BACKLOG}-*/*.index")):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Phases:
    """Runs the phases against one broker."""

    def __init__(self, zk: str, data: Path, logs: Path, seconds: float, readers: int) -> None:
        self._zk = zk
        self._data = data
        self._logs = logs
        self._seconds = seconds
        self._readers = readers
        self._number = 0

    def run(self, *, load: bool, cold: bool) -> dict[str, Any]:
        """Run one phase and return what its processes measured."""
        self._number += 1
        cool(self._data)
        commands: list[tuple[Any, ...]] = [("probe", self._zk, f"probe-{self._number}", self._seconds)]
        if load:
            commands.append(("produce", self._zk, self._seconds))
        if cold:
            groups = (f"cold-{self._number}-{number}" for number in range(self._readers))
            commands += [("cold", self._zk, group, self._seconds) for group in groups]
        answers: list[dict[str, Any]] = [{}] * len(commands)
        threads = [
            threading.Thread(target=self._work, args=(answers, number, command))
            for number, command in enumerate(commands)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not all(answers):
            raise RuntimeError(f"a load generator failed: see {self._logs}")
        found: dict[str, Any] = {"latency": answers[0]}
        if load:
            found["rate"] = answers[1]["rate"]
        if cold:
            found["cold_mb_per_second"] = sum(answer["megabytes_per_second"] for answer in answers[1 + load :])
        return found

    def _work(self, answers: list[dict[str, Any]], number: int, command: tuple[Any, ...]) -> None:
        answers[number] = self.work(*command)

    def work(self, *command: Any) -> dict[str, Any]:
        """Run one command in a process of its own, and return its answer."""
        log = self._logs / f"{self._number}-{command[0]}-{threading.get_ident()}.log"
        with Worker([sys.executable, "-m", "bench.backlog", "--worker"], log, ROOT) as worker:
            return worker.call(json.dumps(command))


@contextmanager
def zookeeper(directory: Path) -> Iterator[str]:
    """Start a ZooKeeper server, and yield its connect string."""
    port = free_port()
    command = [*METAQ, "zookeeper", "--port", str(port), "--data-dir", str(directory / "zookeeper")]
    with Server(command, directory / "zookeeper.log", "zookeeper serves at"):
        yield f"127.0.0.1:{port}"


@contextmanager
def broker(directory: Path, zk: str, limit: int | None, data: Path) -> Iterator[Server]:
    """Start a broker with asynchronous flush; if its memory is limited, put it into a control group."""
    port = free_port()
    config = directory / "server.ini"
    config.write_text(server_ini(port, zk, {BACKLOG: PARTITIONS, LOAD: PARTITIONS, PROBE: 1}, {"dataPath": data}))
    group = None if limit is None else MemoryGroup(limit)
    try:
        with Server([*METAQ, "broker", "-f", str(config)], directory / "broker.log", "serving") as server:
            if group is not None:
                group.add(server.pid)
            yield server
    finally:
        if group is not None:
            group.close()


def main() -> None:
    """Run the measurement, and print the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the backlog (default 4)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase, after 1 s to warm up (default 10)")
    parser.add_argument("--readers", type=int, default=2, help="groups that read the backlog (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of alone and with readers; medians count (default 3)")
    parser.add_argument(
        "--memory-limit", type=float, metavar="GB", help="of the broker with its page cache; needs root"
    )
    parser.add_argument("--directory", help="where data goes, removed at the end (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="metaq-backlog-") as name:
        json.dump(measure(options, Path(name)), sys.stdout, indent=2)
    print()


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Measure everything, with processes and data in `directory`."""
    limit = None if options.memory_limit is None else int(options.memory_limit * 2**30)
    data = directory / "data"
    with zookeeper(directory) as zk, broker(directory, zk, limit, data) as server:
        phases = Phases(zk, data, directory, options.seconds, options.readers)
        filled = phases.work("fill", zk, options.gigabytes)
        alone, together = [], []
        for _ in range(options.rounds):
            alone.append(phases.run(load=True, cold=False))
            together.append(phases.run(load=True, cold=True))
        quiet = phases.run(load=False, cold=True)
        used = memory(server.pid)
    rate_alone = statistics.median(phase["rate"] for phase in alone)
    rate_together = statistics.median(phase["rate"] for phase in together)
    return {
        "backlog": {"gigabytes": options.gigabytes, **filled},
        "memory_limit_gb": options.memory_limit,
        "producing_alone": rate_alone,
        "producing_with_cold_readers": rate_together,
        "ratio": rate_together / rate_alone,
        "alone": alone,
        "with_cold_readers": together,
        "hot_and_cold_readers_only": quiet,
        "broker_memory": used,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        work()
    else:
        main()
