"""Define the data source `metaq`, whose class Spark calls on the driver for each read or write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from metaq.protocol.errors import ConfigError

from .options import ReadMode, ReadOptions, WriteOptions
from .planning import check_published
from .reader import FilteringReader, MetaqReader
from .schema import SPARK_COLUMNS, schema_for
from .stream import MetaqStreamReader
from .workers import spare_modules
from .writer import MetaqStreamWriter, MetaqWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MetaqDataSource", "register"]


class MetaqDataSource(DataSource):
    """The class that Spark uses for `spark.read.format("metaq")` and `df.write.format("metaq")`. docs/spark.md
    describes the options.
    """

    @classmethod
    def name(cls) -> str:
        return "metaq"

    def schema(self) -> StructType:
        spare_modules()
        # wrong options fail at load(), not at the first action
        options = ReadOptions.parse(self.options, "any")
        return schema_for(options.headers, options.include_priority)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema, "batch")
        return FilteringReader(options) if options.push_filters else MetaqReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return MetaqStreamReader(self._read_options(schema, "stream"))

    def _read_options(self, schema: StructType, mode: ReadMode) -> ReadOptions:
        spare_modules()
        return replace(ReadOptions.parse(self.options, mode), columns=_chosen_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigError("mode", "overwrite", 'a topic can only be appended to: choose mode("append")')
        options = WriteOptions.parse(self.options)
        writer = MetaqWriter(options, schema)
        check_published(options)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        # overwrite: in output mode complete each batch is the whole result, and is appended, as by Spark's Kafka sink
        options = WriteOptions.parse(self.options, streaming=True)
        writer = MetaqStreamWriter(options, schema)
        check_published(options)
        return writer


def _chosen_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the record batches that tasks return to Spark, which has the columns of `schema`.

    Raises ConfigError if a column of `schema` does not exist or has another type, or if `schema` declares a column as
    NOT NULL although the column may contain nulls.
    """
    there = {field.name: field.dataType for field in SPARK_COLUMNS.fields}
    with_nulls = {field.name for field in SPARK_COLUMNS.fields if field.nullable}
    for number, field in enumerate(schema.fields):
        if field.name in schema.names[:number]:
            raise ConfigError("schema", field.name, "is there twice")
        if not field.nullable and field.name in with_nulls:
            raise ConfigError("schema", f"{field.name} NOT NULL", "may be null: leave NOT NULL out")
        if there.get(field.name) != field.dataType:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in there.items())
            raise ConfigError("schema", f"{field.name} {field.dataType.simpleString()}", f"choose from {known}")
    return to_arrow_schema(schema, timezone="UTC")


def register(spark: SparkSession) -> None:
    """Make `format("metaq")` known to `spark`, and make `spark` the active session of this thread.

    Call this function once per session, and also in each other thread that writes. Other threads need the call because
    Spark 4.3 looks for a Python data source in the active session of the thread that writes. Spark also looks in that
    session to check whether the name of a data source is already in use. The package metaq must be installed on the
    executors.
    """
    spark.createDataFrame([], "value BINARY")  # PySpark's only public call that activates a session
    spark.dataSource.register(MetaqDataSource)
