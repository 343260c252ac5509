"""Read a topic far larger than Spark's memory with Spark, and measure the memory of Spark's processes: `python -m
bench.spark_memory`.

Spark runs with local[2], so driver and executors share the heap of one JVM. The program writes spark_memory.json, which
spark_peer.py includes in SPARK.md. The exit code is 1 if the second half of the reading needed clearly more memory than
the first.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import click

from .memory import resident_mb
from .names import OURS
from .processes import Worker
from .scenarios import Stage, Topic
from .systems import start_stage

__all__ = ["RESULT", "grew", "paragraph"]

HERE = Path(__file__).parent
MESSAGE_BYTES = 1024
BATCH = 500
RESULT = "spark_memory.json"
SAMPLE_SECONDS = 0.2
ALLOWED_GROWTH = 1.1
"""Highest allowed ratio of the peak in the second half to the peak in the first."""


class Watch(threading.Thread):
    """Thread that samples the resident memory of a process and all its descendants until stop(). samples: the sums over
    these processes, in units of 10^6 bytes.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[float] = []
        self._pid = pid
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self.samples.append(sum(map(_resident, _below(self._pid))))

    def stop(self) -> list[float]:
        self._end.set()
        self.join()
        return self.samples


def _below(pid: int) -> list[int]:
    found = [pid]
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:
            continue  # the thread has just ended
        found += [each for child in children for each in _below(int(child))]
    return found


def _resident(pid: int) -> float:
    try:
        return resident_mb(pid)[0]
    except (OSError, KeyError, IndexError):
        return 0.0  # the process has just ended


def grew(samples: list[float]) -> float:
    """Return the peak of the second half of `samples` divided by the peak of the first half; 1.0 if there are too few
    samples.
    """
    half = len(samples) // 2
    return max(samples[half:]) / max(samples[:half]) if half else 1.0


def paragraph(result: dict[str, Any]) -> list[str]:
    """Return the lines of SPARK.md about a run. result: the content of RESULT, which main() writes."""
    second = result["second"]
    return [
        f"A topic of {result['megabytes']:,} MB read with a heap of {result['heap']}"
        f" (`python -m bench.spark_memory`): {second['rate']:,} rows a second;",
        f"the JVM and its Python workers held {second['peak_mb']:,.0f} MB at most, in the second half of the reading"
        f" {second['growth']:.2f} times",
        "what they held at most in the first half.",
    ]


@click.command()
@click.option("--megabytes", type=click.IntRange(1), default=10_000, show_default=True, help="Payload of the topic.")
@click.option("--heap", default="1g", show_default=True, help="Of Spark's JVM.")
@click.option("--partitions", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, resolve_path=True),
    help="For data and logs; default: a temporary one.",
)
@click.option("--output", type=click.Path(path_type=Path, exists=True), default=HERE, help=f"Where {RESULT} goes.")
def main(megabytes: int, heap: str, partitions: int, directory: Path | None, output: Path) -> None:
    """Fill a topic, read it twice with Spark (the first time to warm up), and report the memory of the second time."""
    count = megabytes * 1_000_000 // MESSAGE_BYTES // BATCH * BATCH
    topics = {"large": Topic(partitions)}
    with tempfile.TemporaryDirectory(prefix="metaq-spark-memory-", dir=directory) as data:
        place = Path(data)
        with start_stage(Stage("memory", "Memory", topics), topics, [OURS], place, None, _say) as running:
            running.systems[OURS].generator.call("send_batch", "large", BATCH, count, MESSAGE_BYTES)
            command = [sys.executable, str(HERE / "spark_worker.py"), "metaq", running.brokers[OURS].address, heap]
            with Worker(command, place / "spark.log", HERE.parent) as spark:
                first = _read(spark, count)
                second = _read(spark, count)
    result = {"heap": heap, "megabytes": megabytes, "first": first, "second": second}
    (output / RESULT).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    click.echo("\n".join(paragraph(result)))
    sys.exit(1 if second["growth"] > ALLOWED_GROWTH else 0)


def _read(spark: Worker, count: int) -> dict[str, Any]:
    watch = Watch(spark.pid)
    watch.start()
    answer = spark.call("read", "large", count, MESSAGE_BYTES)
    samples = watch.stop()
    peak = max(samples, default=0.0)
    return {"rate": round(answer["rate"]), "peak_mb": round(peak, 1), "growth": round(grew(samples), 3)}


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
