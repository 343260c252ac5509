"""PySpark, installed by a child process of the demo."""

import re

import pytest

from metaq.cli.demo import spark_install
from metaq.cli.demo.report import Report
from metaq.cli.demo.spark_install import SparkInstallation, requirements
from metaq.cli.terminal import console
from metaq.protocol.errors import ClientError, RequestTimedOut
from tests.waiting import eventually


def test_the_requirements_are_those_of_the_extra():
    assert [re.split("[<>]", each)[0] for each in requirements("spark")] == ["pyspark", "pyarrow", "pandas"]
    assert requirements("none") == []


@pytest.mark.parametrize(("installed", "ends_well"), [("pytest", True), ("metaq-no-such-thing", False)])
def test_what_pip_says_decides(tmp_path, monkeypatch, capsys, installed, ends_well):
    monkeypatch.setattr(spark_install, "requirements", lambda extra: ["--no-index", installed])
    installation = SparkInstallation(tmp_path)
    report = Report(console(None, pipe_columns=80))
    try:
        with pytest.raises(RequestTimedOut, match="was not installed within 1800 s"):
            installation.finish(report, ended=False)
        eventually(lambda: not installation.running)
        if ends_well:
            installation.finish(report, ended=True)
        else:
            with pytest.raises(ClientError, match=r"pip ended with exit code 1: .*metaq-no-such-thing"):
                installation.finish(report, ended=True)
    finally:
        installation.stop()
