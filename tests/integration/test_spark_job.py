"""metaq-spark in this process's Spark: what is new is appended, every column comes back, failures have their codes."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metaq import Producer, browse
from metaq.spark_connector import job

TOPICS = ["days:2", "again:2"]
OPTIONS = ("--flush", "async")


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The jobs run in this Spark and leave it running."""
    monkeypatch.setattr(job, "_session", lambda master: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert job.main(arguments) == job.DONE
    result: dict[str, float] = json.loads(capsys.readouterr().out)
    return result


def test_a_second_drain_appends_what_is_new_and_restore_sends_it_all(here, cluster, tmp_path, capsys):
    rows, where = str(tmp_path / "rows"), ("--zookeeper", cluster.zookeeper)
    drain = ("drain", rows, "--topic", "days", "--group", "nightly", *where)
    with Producer(cluster.zookeeper) as producer:
        producer.send(
            "days",
            b"1",
            tag="buy",
            attribute="old",
            keys=["o-1"],
            properties={"trace": "é", "amount": 7, "raw": b"7"},
            key="k",
            priority=6,
        )
        assert ran(capsys, *drain)["messages"] == 1
        for number in range(2, 60):
            producer.send("days", str(number).encode(), key="k", keys=["o-1"])
        assert ran(capsys, *drain, "--batch-bytes", "1000")["messages"] == 58
        assert ran(capsys, *drain)["messages"] == 0
    assert list(Path(rows).glob("day=*/*.parquet"))
    after = ("--since", "2999-01-01")
    assert ran(capsys, "restore", rows, "--topic", "again", *where, *after)["messages"] == 0
    until = ("--until", "2999-01-01", "--exactly-once")
    assert ran(capsys, "restore", rows, "--topic", "again", *where, *until)["messages"] == 59
    back = list(browse(cluster.zookeeper, "again"))
    assert [message.payload for message in back] == [str(number).encode() for number in range(1, 60)]
    first = back[0]
    assert (first.tag, first.attribute, first.keys) == ("buy", "old", ("o-1", "k"))
    assert [message.priority for message in back] == [6] + [0] * 58
    assert first.properties == {"trace": "é", "amount": 7, "raw": b"7"}


def test_what_fails_in_spark_ends_with_the_code_for_that(here, cluster, tmp_path, capsys):
    where = ("--zookeeper", cluster.zookeeper)
    assert job.main(["restore", str(tmp_path / "nothing"), *where]) == job.FAILED
    capsys.readouterr()
    for command in ("drain", "restore"):
        assert job.main([command, str(tmp_path / "rows"), "--topic", "nowhere", *where]) == job.FAILED
        said = capsys.readouterr().err
        assert "topic 'nowhere' is published by no live broker" in said
        assert said.count("\n") == 1
