"""The lag of a query, as a broker counts it."""

import pytest

from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import open_connection
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import HEADER_BYTES
from metaq.spark_connector.lag import partition_lag
from metaq.testing import FakeBroker

ZERO = TopicPartition("t", 0, 0)


def test_a_partition_s_lag_is_counted_from_the_position():
    with FakeBroker(topics={"t": 1}) as broker:
        for _ in range(3):
            broker.append("t", 0, b"x" * 10)
        stored = (store_time_ms(broker.log("t", 0).ids[0]) or 0) / 1000
        connection = open_connection(broker.endpoint, ConnectionConfig())
        try:
            size = HEADER_BYTES + 10
            lag = partition_lag(connection, ZERO, 0, stored + 5)
            assert lag[:5] == (ZERO, 0, 3 * size, 3 * size, 3)
            assert lag.seconds == pytest.approx(5)
            assert partition_lag(connection, ZERO, size, stored - 9)[1:] == (size, 3 * size, 2 * size, 2, 0.0)
            assert partition_lag(connection, ZERO, 3 * size, stored + 5)[3:] == (0, 0, 0.0)
        finally:
            connection.close()
