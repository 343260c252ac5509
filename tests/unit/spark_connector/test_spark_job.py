"""metaq-spark's command line: what is wrong ends before Spark starts, with the option, the value and the choices."""

import pytest

from metaq.spark_connector import job
from tests.raising import raising

WHERE = ["--zookeeper", "h:1"]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    monkeypatch.setattr(job, "_session", raising(AssertionError("Spark was started")))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", "d", "--topic", "a/b", *WHERE], "subscribe=a/b"),
        (["drain", "d", "--pattern", "tr(", *WHERE], "subscribePattern=tr("),
        (["drain", "d", "--topic", "t", "--tags", "a,,b", *WHERE], "tags=a,,b"),
        (["drain", "d", "--topic", "t", "--group", "a.b", *WHERE], "group=a.b"),
        (["drain", "d", "--topic", "t", "--option", "metaq.fetch.bytes=1", *WHERE], "metaq.fetch.bytes=1"),
        (["drain", "d", "--topic", "t", "--option", "endingOffsets=latest", *WHERE], "endingOffsets=latest"),
        (["restore", "d", "--topic", "a/b", *WHERE], "topic=a/b"),
        (["restore", "d", "--option", "metaq.batch.messages=0", *WHERE], "metaq.batch.messages=0"),
        (["queries", "--zookeeper", "h:port"], "zookeeper=h:port"),
        (["forget", "q", "--root", "/..", *WHERE], "metaq.root=/.."),
    ],
)
def test_a_wrong_option_of_source_or_sink_is_named(arguments, said, capsys):
    assert job.main(arguments) == job.WRONG_USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["drain", "d", *WHERE], "--topic --pattern"),
        (["drain", "d", "--topic", "t"], "--zookeeper"),
        (["drain", "d", "--topic", "t", "--batch-bytes", "0", *WHERE], "'0' is not a number of bytes above 0"),
        (["drain", "d", "--topic", "t", "--option", "tags", *WHERE], "write NAME=VALUE"),
        (["restore", "d", "--since", "May 1", *WHERE], "'May 1' is not a day: write YYYY-MM-DD"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_same_code(arguments, said, capsys):
    with pytest.raises(SystemExit) as refused:
        job.main(arguments)
    assert refused.value.code == job.WRONG_USAGE
    assert said in capsys.readouterr().err
