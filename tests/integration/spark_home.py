"""A Spark that starts quickly: PySpark as it is installed, its pyspark.zip unpacked, and an archive of classes.

Spark gives the Python process of a stream 10 seconds, which no option changes, to import PySpark and call back. From
the zip, which has no bytecode, that takes four times as much of the processor as from the installed package.

Its JVM takes 7 s of the processor to start, half of them to load 12,000 classes. It can write an archive of these where
it ends, and start from that. The first tests with Spark on a machine have the archive made beside them.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["OPTIONS", "quick_spark"]

OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable that Spark takes options of a driver's JVM from."""


@contextmanager
def quick_spark(*, archive: bool) -> Iterator[Mapping[str, str]]:
    """Environment variables for all Sparks of the tests. archive: have one made meanwhile, if there is none."""
    home = _home()
    if home is None:
        yield {}
        return
    classes = home / "classes.jsa"
    variables = {"SPARK_HOME": str(home), OPTIONS: f"-XX:SharedArchiveFile={classes} -Xlog:disable"}
    if not archive or classes.exists():
        yield variables
        return
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another worker has it made
            yield variables
            return
        command = [sys.executable, "-m", __name__, str(classes)]
        making = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL)
        try:
            yield variables
        finally:
            making.wait()


def _home() -> Path | None:
    """Made on the first call and kept beside the libraries, as an archive is good for jars at their paths only. None:
    PySpark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    installed = Path(spec.origin).parent
    home = installed.with_name(f"metaq-tests-spark-{importlib.metadata.version('pyspark')}")
    if home.exists():
        return home
    made = home.with_name(f"{home.name}-{os.getpid()}")
    libraries = made / "python" / "lib"
    libraries.mkdir(parents=True)
    for each in installed.iterdir():
        if each.name != "python":
            (made / each.name).symlink_to(each)
    for each in (installed / "python" / "lib").iterdir():
        if each.name != "pyspark.zip":
            (libraries / each.name).symlink_to(each)
    (libraries / "pyspark.zip").mkdir()  # on the path of each Python process
    (libraries / "pyspark.zip" / "pyspark").symlink_to(installed)
    try:
        made.rename(home)
    except OSError:  # another worker was quicker
        shutil.rmtree(made)
    return home


def _make_archive(classes: Path) -> None:
    """Of what a session, a query, a stream and a Python source load."""
    made = classes.with_name(f"{classes.name}-{os.getpid()}")
    os.environ[OPTIONS] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.range(10).selectExpr("id", "cast(id as string) as text").groupBy("text").count().collect()
    stream = session.readStream.format("rate").load().writeStream.format("noop").trigger(once=True).start()
    stream.awaitTermination()
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    made.rename(classes)


if __name__ == "__main__":
    _make_archive(Path(sys.argv[1]))
