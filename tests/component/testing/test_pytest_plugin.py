"""The pytest plugin, in test runs of its own, and the examples of docs/testing.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
# by its module, and not by its entry point: the installed metaq may be older than this checkout
PLUGIN = ("-p", "no:metaq", "-p", "metaq.testing.plugin", "-p", "no:cacheprovider")


def test_the_examples_of_the_page_run(pytester: pytest.Pytester):
    assert len(EXAMPLES) >= 6
    pytester.makepyfile(**{f"test_{number}": source for number, source in enumerate(EXAMPLES)})
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=len(EXAMPLES))


def test_tests_do_not_see_each_others_topics_and_the_shared_cluster_stays(pytester: pytest.Pytester):
    pytester.makeconftest(
        "import pytest\n@pytest.fixture\ndef metaq_topics():\n    return {'t': 1}\n",
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_alone(metaq, number):
            assert metaq.sent("t") == []
            metaq.producer().send("t", b"x")
            metaq.assert_sent("t", count=1)

        @pytest.mark.parametrize("number", range(2))
        def test_shared(metaq_cluster, number):
            metaq_cluster.create_topic(f"t{number}")
            metaq_cluster.producer().send(f"t{number}", b"x")
            assert [len(metaq_cluster.sent(f"t{each}")) for each in range(number + 1)] == [1] * (number + 1)
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=4)


def test_a_run_without_its_fixtures_imports_nothing_of_it(tmp_path: Path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_plain():\n"
        "    assert not {'twisted', 'kazoo', 'numpy', 'metaq.client', 'metaq.testing.cluster'} & set(sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-q", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_package_needs_no_pytest():
    program = "import sys; sys.modules['pytest'] = None; from metaq.testing import Cluster, handle_all"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_doubles_warn_and_name_the_page():
    import metaq.testing

    with pytest.warns(DeprecationWarning, match=r"docs/testing\.md"):
        metaq.testing.FakeBroker  # noqa: B018
