"""The examples of docs/spark.md, run in order as one program, the notebook, and the page's tables of options."""

import json
import re
from typing import Any

from metaq import Producer
from metaq.spark_connector.columns import COLUMNS
from metaq.spark_connector.options import READ_NAMES, WRITE_NAMES
from metaq.spark_connector.schema import SPARK_COLUMNS

from .cli_helpers import serving_up
from .doc_examples import ROOT, blocks


def test_the_examples_of_the_page_run_and_compute_what_they_say(spark, tmp_path):
    with serving_up(tmp_path / "data", ["trades:2", "totals:1"]) as up:
        with Producer(up.zookeeper) as producer:
            for symbol, price in (("AA", 1), ("AA", 2), ("BB", 5)):
                producer.send("trades", str(price).encode(), key=symbol, keys=[symbol])
        source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
        source.mkdir()
        for number in range(2):
            (source / str(number)).write_text(f"line {number}")
        names: dict[str, Any] = {"spark": spark, "source": str(source), "checkpoint": str(checkpoint)}
        elsewhere = ("spark_connector.job", "daily_delays")  # have tests of their own
        pages = blocks("spark.md", "python")
        examples = [block for block in pages if not any(name in block for name in elsewhere)]
        assert len(examples) == 6
        for example in examples:
            exec(
                example.replace("127.0.0.1:2181", up.zookeeper).replace("/tmp/prices", str(tmp_path / "prices")), names
            )
        spark.streams.removeListener(names["lag"])
        names["lag"].close()
        assert names["new"].count() == 3
        rows = spark.read.parquet(str(tmp_path / "prices" / "rows")).collect()
        assert sorted(tuple(row) for row in rows) == [("AA", 1), ("AA", 2), ("BB", 5)]
        totals = spark.read.format("metaq").options(zookeeper=up.zookeeper, subscribe="totals").load()
        rows = totals.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
        streamed = {(None, "line 0"), (None, "line 1")}
        assert {tuple(row) for row in rows} == {("AA", "3"), ("BB", "5")} | streamed
        assert len(rows) == 4


def test_the_notebook_runs_from_top_to_bottom(spark, tmp_path):
    cells = json.loads((ROOT / "docs" / "spark.ipynb").read_text("utf-8"))["cells"]
    with serving_up(tmp_path / "data", ["trades:2"]) as up:
        names: dict[str, Any] = {}
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]).replace("127.0.0.1:2181", up.zookeeper), names)
        sold = [tuple(row) for row in names["by_shop"].collect()]
        assert sold == [(f"shop-{shop}", 34 - (shop > 0), sum(range(shop, 100, 3))) for shop in range(3)]
        assert spark.table("seen").count() == 100


def test_the_tables_of_the_page_name_every_option_and_column():
    text = (ROOT / "docs" / "spark.md").read_text("utf-8")
    reading, writing = text.split("## Writing")
    rows = {
        part: set(re.findall(r"`([\w.]+)`", "\n".join(re.findall(r"^\| (`[^|]*) \|", part, re.MULTILINE))))
        for part in (reading, writing)
    }
    assert set(READ_NAMES) | set(SPARK_COLUMNS.fieldNames()) == rows[reading]
    assert set(WRITE_NAMES) | set(COLUMNS) == rows[writing]
