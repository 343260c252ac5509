"""Measure the time from kill -9 with many partitions to serving again, and the speed of rebuilding indexes: `python -m
bench.startup`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from .processes import Server, cpu_seconds, free_port
from .server_ini import server_ini
from .startup_fill import REBUILT_TOPIC, TOPIC
from .systems import FLUSH, zookeeper

__all__ = ["measure_startup"]

_REBUILT_BYTES = 2 << 30
_REBUILD_SECONDS = 120.0
_SETTLED_SECONDS = 3.0
"""Seconds between the end of the rebuild and the measurement of the memory at rest."""
_ROOT = Path(__file__).resolve().parents[1]


class StartupFailed(RuntimeError):
    """A step did not end as expected."""


def measure_startup(
    directory: Path, partitions: int, total_bytes: int, *, body_bytes: int = 1024, durable: bool = False
) -> dict[str, Any]:
    """Fill a data directory below `directory` and kill the writer; start a broker and kill it, twice; then start it
    with indexes missing. Raises StartupFailed and ProcessFailed.

    The result has the seconds from the process's start to its "serving" line, after a kill under load and after a kill
    at rest; the megabytes per second that the rebuild of the closed segments' indexes reads; and the broker's resident
    memory and number of descriptors.
    """
    data = directory / "data"
    _fill(data, partitions, total_bytes, body_bytes, durable=durable)
    with ExitStack() as stack:
        connect = stack.enter_context(zookeeper(directory))
        topics = {TOPIC: partitions, REBUILT_TOPIC: 1}
        config = directory / "server.ini"
        config.write_text(server_ini(free_port(), connect, topics, {"dataPath": data, **FLUSH[durable]}))
        result: dict[str, Any] = {
            "partitions": partitions,
            "bytes": total_bytes,
            "body_bytes": body_bytes,
            "durable": durable,
        }
        result |= _start_and_kill(directory, config, "")
        result |= _start_and_kill(directory, config, "_at_rest")
        return result | _rebuild(directory, config, data)


def _fill(data: Path, partitions: int, total_bytes: int, body_bytes: int, *, durable: bool) -> None:
    data.mkdir()
    words = [data, partitions, total_bytes, body_bytes, _REBUILT_BYTES, "durable" if durable else "asynchronous"]
    command = [sys.executable, "-m", "bench.startup_fill", *map(str, words)]
    ended = subprocess.run(command, cwd=_ROOT, check=False).returncode
    if ended != -signal.SIGKILL:
        raise StartupFailed(f"filling {data} ended with code {ended}")


def _start_and_kill(directory: Path, config: Path, when: str) -> dict[str, float]:
    broker, seconds = _start(directory, config)
    cpu = cpu_seconds(broker.pid)
    broker.kill()
    return {f"seconds_to_serving{when}": seconds, f"cpu_seconds_to_serving{when}": cpu}


def _start(directory: Path, config: Path) -> tuple[Server, float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "metaq", "broker", "-f", str(config)]
    broker = Server(command, directory / "broker.log", "metaq broker 0 serving")
    return broker, round(time.monotonic() - began, 2)


def _rebuild(directory: Path, config: Path, data: Path) -> dict[str, Any]:
    """Start a broker without the indexes of closed segments. Return the speed of the rebuild, which runs in the
    background, and the broker's memory and descriptors afterwards.
    """
    folder = data / f"{REBUILT_TOPIC}-0"
    *closed, _ = sorted(folder.glob("*.meta"))
    size = sum(each.stat().st_size for each in closed)
    indexes = [each.with_suffix(".index") for each in closed]
    for index in indexes:
        index.unlink(missing_ok=True)
    broker, seconds = _start(directory, config)
    with broker:
        began = time.monotonic()
        done = sum(index.exists() for index in indexes)
        while not all(index.exists() for index in indexes):
            if time.monotonic() - began > _REBUILD_SECONDS:
                raise StartupFailed(f"the indexes in {folder} are not back within {_REBUILD_SECONDS:.0f} s")
            time.sleep(0.01)
        rebuilt = size * (len(indexes) - done) // len(indexes)
        rate = rebuilt / max(time.monotonic() - began, 0.01) / 1e6
        time.sleep(_SETTLED_SECONDS)
        return {
            "seconds_to_serving_without_closed_indexes": seconds,
            "rebuild_megabytes_per_second": round(rate),
            "memory_at_rest_megabytes": _resident_bytes(broker.pid) // 1_000_000,
            "descriptors": len(os.listdir(f"/proc/{broker.pid}/fd")),
        }


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@click.command()
@click.option("--partitions", type=click.IntRange(1), default=10_240, show_default=True)
@click.option("--gigabytes", type=click.FloatRange(0.001), default=10.0, show_default=True, help="In all partitions.")
@click.option("--body", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of a message's body.")
@click.option("--durable", is_flag=True, help="Fill and start with synchronous flush.")
@click.option(
    "--directory", type=click.Path(path_type=Path, exists=True), help="For data and logs; default: a temporary one."
)
def main(partitions: int, gigabytes: float, body: int, durable: bool, directory: Path | None) -> None:
    """Measure the start after kill -9 with a data directory of many partitions; print JSON. Needs twice the space of
    the data on the disk.
    """
    with tempfile.TemporaryDirectory(prefix="metaq-startup-", dir=directory) as data:
        size = int(gigabytes * 1e9)
        click.echo(
            json.dumps(measure_startup(Path(data), partitions, size, body_bytes=body, durable=durable), indent=1)
        )


if __name__ == "__main__":
    main()
