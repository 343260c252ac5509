"""Topics as Spark DataFrames: `spark.read.format("metaq")` and `df.write.format("metaq")` (docs/spark.md)."""

from __future__ import annotations

from .lag import LagListener, LagReport, PartitionLag
from .source import MetaqDataSource, register

__all__ = ["LagListener", "LagReport", "MetaqDataSource", "PartitionLag", "register"]
