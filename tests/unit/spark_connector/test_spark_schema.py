"""Schemas that a reader may ask for."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from metaq.protocol.errors import ConfigError
from metaq.spark_connector.source import MetaqDataSource

GIVEN = {"zookeeper": "host:2181", "subscribe": "trades"}
OFFSET, TAG = StructField("offset", LongType(), False), StructField("tag", StringType(), True)


def test_columns_that_always_have_a_value_may_be_not_null():
    assert MetaqDataSource(GIVEN).reader(StructType([OFFSET, TAG])) is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([StructField("tag", StringType(), False)], "schema=tag NOT NULL: may be null"),
        ([OFFSET, TAG, OFFSET], "schema=offset: is there twice"),
        ([StructField("offset", StringType(), True)], "choose from"),
    ],
)
def test_a_column_that_spark_would_read_wrongly_is_refused(fields, said):
    """Spark answers `tag IS NULL` with no row, unasked, where it may rely upon NOT NULL."""
    with pytest.raises(ConfigError, match=said):
        MetaqDataSource(GIVEN).reader(StructType(fields))
