"""The alarms in docs/replication.md are rules that Prometheus takes, of metrics that a node shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "replication.md").read_text("utf-8")
SHOWN = (ROOT / "broker" / "http" / "metrics.py").read_text("utf-8")


def rules() -> str:
    (found,) = re.findall(r"^```yaml\n(groups:\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is missing: install the package prometheus")
    return found


def check(rules: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [promtool(), *(words or ("check", "rules")), str(rules)],
        capture_output=True,
        text=True,
        check=False,
        cwd=rules.parent,
    )


def test_the_rules_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules())
    checked = check(file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{rules().count('- alert:')} rules found" in checked.stdout


def test_a_wrong_rule_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules().replace("sum by (set)", "sum by set", 1))
    assert check(file).returncode != 0


def test_a_set_without_a_leader_and_a_node_alone_are_told(tmp_path: Path) -> None:
    """As Prometheus would after some minutes of these figures."""
    (tmp_path / "rules.yml").write_text(rules())
    file = tmp_path / "test.yml"
    file.write_text(CASES)
    tested = check(file, "test", "rules")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_alarms_are_of_metrics_that_a_node_shows() -> None:
    names = set(re.findall(r"\bmetaq_set_\w+", rules()))
    assert len(names) >= 5
    assert [name for name in sorted(names) if f'"{name.removesuffix("_total")}' not in SHOWN] == []


def test_the_table_explains_every_alarm() -> None:
    alarms = re.findall(r"- alert: (\w+)", rules())
    assert len(alarms) >= 6
    assert re.findall(r"^\| `(Metaq\w+)` \|", PAGE, re.MULTILINE) == alarms


CASES = """
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'metaq_set_role{role="leader", set="0", instance="a"}'
        values: '0x40'
      - series: 'metaq_set_role{role="leader", set="1", instance="c"}'
        values: '1x40'
      - series: 'metaq_set_in_sync_nodes{set="1", instance="c"}'
        values: '1x40'
      - series: 'metaq_set_role{role="stopped", set="1", instance="d"}'
        values: '1x40'
    alert_rule_test:
      - eval_time: 5m
        alertname: MetaqSetWithoutLeader
        exp_alerts:
          - exp_labels: {set: "0", severity: critical}
            exp_annotations: {summary: "Nobody leads set 0"}
      - eval_time: 5m
        alertname: MetaqSetAlone
        exp_alerts:
          - exp_labels: {set: "1", severity: critical}
            exp_annotations: {summary: "Set 1 has one copy of new messages"}
      - eval_time: 5m
        alertname: MetaqNodeStopped
        exp_alerts:
          - exp_labels: {set: "1", severity: warning, role: stopped, instance: d}
            exp_annotations: {summary: "d waits for an operator"}
      - eval_time: 5m
        alertname: MetaqSetUnsteady
        exp_alerts: []
"""
