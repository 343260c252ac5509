"""What is done once per Python process of Spark's."""

import subprocess
import sys

SCRIPT = """
import gc
from metaq.spark_connector.workers import spare_modules
spare_modules()
first = gc.get_freeze_count()
assert first > 1000
later = [[] for _ in range(10)]
spare_modules()
assert gc.get_freeze_count() <= first
"""


def test_what_is_imported_is_spared_and_what_comes_later_is_not():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
