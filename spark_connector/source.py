"""The data source `metaq`: what Spark calls first, on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from metaq.protocol.errors import ConfigError

from .options import ReadOptions, WriteOptions
from .planning import check_published
from .reader import MetaqReader
from .schema import SPARK_SCHEMA
from .writer import MetaqWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MetaqDataSource", "register"]


class MetaqDataSource(DataSource):
    """`spark.read.format("metaq")` and `df.write.format("metaq")`; options in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "metaq"

    def schema(self) -> StructType:
        ReadOptions.parse(self.options)  # wrong options fail at load(), not at the first action
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != SPARK_SCHEMA:
            raise ConfigError(
                "schema", schema.simpleString(), f"is fixed: leave it out ({SPARK_SCHEMA.simpleString()})"
            )
        return MetaqReader(ReadOptions.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigError("mode", "overwrite", 'a topic can only be appended to: choose mode("append")')
        options = WriteOptions.parse(self.options)
        writer = MetaqWriter(options, schema)
        check_published(options)
        return writer


def register(spark: SparkSession) -> None:
    """Make `format("metaq")` known to `spark`; once per session. Executors need the package metaq installed."""
    spark.dataSource.register(MetaqDataSource)
