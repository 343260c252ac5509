"""The alarms in the documents are rules that Prometheus takes, of metrics that a broker shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST_ALARMS = {"replication": 6, "moving": 2}
"""By page."""
EACH_PAGE = pytest.mark.parametrize("page", LEAST_ALARMS)
SHOWN = (ROOT / "broker" / "http" / "metrics.py").read_text("utf-8")


def text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text("utf-8")


def rules(page: str = "replication") -> str:
    (found,) = re.findall(r"^```yaml\n(groups:\n.*?)^```", text(page), re.MULTILINE | re.DOTALL)
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


@EACH_PAGE
def test_the_rules_are_taken(tmp_path: Path, page: str) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules(page))
    checked = check(file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{rules(page).count('- alert:')} rules found" in checked.stdout


def test_a_wrong_rule_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules().replace("sum by (set)", "sum by set", 1))
    assert check(file).returncode != 0


@EACH_PAGE
def test_what_is_wrong_is_told_and_nothing_else(tmp_path: Path, page: str) -> None:
    """As Prometheus would after some minutes of these figures."""
    (tmp_path / "rules.yml").write_text(rules(page))
    file = tmp_path / "test.yml"
    file.write_text(CASES[page])
    tested = check(file, "test", "rules")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@EACH_PAGE
def test_the_alarms_are_of_metrics_that_a_broker_shows(page: str) -> None:
    names = set(re.findall(r"\bmetaq_(?:set|move)_\w+", rules(page)))
    assert len(names) >= LEAST_ALARMS[page] - 1
    assert [name for name in sorted(names) if f'"{name.removesuffix("_total")}' not in SHOWN] == []


@EACH_PAGE
def test_the_table_explains_every_alarm(page: str) -> None:
    alarms = re.findall(r"- alert: (\w+)", rules(page))
    assert len(alarms) >= LEAST_ALARMS[page]
    assert re.findall(r"^\| `(Metaq\w+)` \|", text(page), re.MULTILINE) == alarms


SET_CASES = """
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - name: a set without a leader, and one with a leader and a stopped node
    interval: 15s
    input_series:
      - series: 'up{set="0", instance="a"}'
        values: '1x40'
      - series: 'metaq_set_role{role="leader", set="0", instance="a"}'
        values: '0x40'
      - series: 'up{set="1", instance="c"}'
        values: '1x40'
      - series: 'up{set="1", instance="d"}'
        values: '1x40'
      - series: 'up{instance="of something else"}'
        values: '0x40'
      - series: 'metaq_set_role{role="leader", set="1", instance="c"}'
        values: '1x40'
      - series: 'metaq_set_role{role="leader", set="1", instance="d"}'
        values: '0x40'
      - series: 'metaq_set_in_sync_nodes{set="1", instance="c"}'
        values: '1x40'
      - series: 'metaq_set_refusing_topics{set="1", instance="c"}'
        values: '3x40'
      - series: 'metaq_set_role{role="stopped", set="1", instance="d"}'
        values: '1x40'
    alert_rule_test:
      - eval_time: 5m
        alertname: MetaqSetWithoutLeader
        exp_alerts:
          - exp_labels: {set: "0", severity: critical}
            exp_annotations: {summary: "Nobody leads set 0"}
      - eval_time: 5m
        alertname: MetaqSetRefusesMessages
        exp_alerts:
          - exp_labels: {set: "1", severity: critical}
            exp_annotations: {summary: "3 topics of set 1 take no messages"}
      - eval_time: 5m
        alertname: MetaqSetAlone
        exp_alerts:
          - exp_labels: {set: "0", severity: critical}
            exp_annotations: {summary: "Set 0 has 0 copies of new messages"}
          - exp_labels: {set: "1", severity: critical}
            exp_annotations: {summary: "Set 1 has 1 copies of new messages"}
      - eval_time: 5m
        alertname: MetaqNodeDown
        exp_alerts: []
      - eval_time: 5m
        alertname: MetaqNodeStopped
        exp_alerts:
          - exp_labels: {set: "1", severity: warning, role: stopped, instance: d}
            exp_annotations: {summary: "d waits for an operator"}
      - eval_time: 5m
        alertname: MetaqSetUnsteady
        exp_alerts: []
  - name: all nodes of a set are down, so that none shows anything; another set is whole
    interval: 15s
    input_series:
      - series: 'up{set="0", instance="a"}'
        values: '1x4 0x40'
      - series: 'up{set="0", instance="b"}'
        values: '1x4 0x40'
      - series: 'metaq_set_role{role="leader", set="0", instance="a"}'
        values: '1x4 stale'
      - series: 'metaq_set_in_sync_nodes{set="0", instance="a"}'
        values: '2x4 stale'
      - series: 'metaq_set_refusing_topics{set="0", instance="a"}'
        values: '0x4 stale'
      - series: 'up{set="1", instance="c"}'
        values: '1x44'
      - series: 'metaq_set_role{role="leader", set="1", instance="c"}'
        values: '1x44'
      - series: 'metaq_set_in_sync_nodes{set="1", instance="c"}'
        values: '2x44'
      - series: 'metaq_set_refusing_topics{set="1", instance="c"}'
        values: '0x44'
    alert_rule_test:
      - eval_time: 45s
        alertname: MetaqSetWithoutLeader
        exp_alerts: []
      - eval_time: 45s
        alertname: MetaqSetAlone
        exp_alerts: []
      - eval_time: 5m
        alertname: MetaqSetWithoutLeader
        exp_alerts:
          - exp_labels: {set: "0", severity: critical}
            exp_annotations: {summary: "Nobody leads set 0"}
      - eval_time: 5m
        alertname: MetaqSetAlone
        exp_alerts:
          - exp_labels: {set: "0", severity: critical}
            exp_annotations: {summary: "Set 0 has 0 copies of new messages"}
      - eval_time: 5m
        alertname: MetaqNodeDown
        exp_alerts:
          - exp_labels: {set: "0", severity: warning, instance: a}
            exp_annotations: {summary: "a of set 0 does not answer"}
          - exp_labels: {set: "0", severity: warning, instance: b}
            exp_annotations: {summary: "b of set 0 does not answer"}
      - eval_time: 5m
        alertname: MetaqSetRefusesMessages
        exp_alerts: []
"""

MOVE_CASES = """
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'metaq_move_idle_seconds{topic="t", from="0-2", to="1", instance="a"}'
        values: '0+15x40'
      - series: 'metaq_move_idle_seconds{topic="u", from="0-0", to="1", instance="a"}'
        values: '1x40'
      - series: 'metaq_move_state_seconds{topic="t", from="0-2", to="1", state="closing", instance="a"}'
        values: '0+15x40'
      - series: 'metaq_move_state_seconds{topic="t", from="0-2", to="1", state="closing", instance="b"}'
        values: '0+15x40'
      - series: 'metaq_move_state_seconds{topic="u", from="0-0", to="1", state="copying", instance="a"}'
        values: '0+15x40'
    alert_rule_test:
      - eval_time: 1m
        alertname: MetaqMoveHeldClosing
        exp_alerts: []
      - eval_time: 2m
        alertname: MetaqMoveHeldClosing
        exp_alerts:
          - exp_labels: {topic: t, from: "0-2", severity: critical}
            exp_annotations: {summary: "t 0-2 takes no messages until its move goes on"}
      - eval_time: 5m
        alertname: MetaqMoveStuck
        exp_alerts: []
      - eval_time: 6m
        alertname: MetaqMoveStuck
        exp_alerts:
          - exp_labels: {topic: t, from: "0-2", severity: warning}
            exp_annotations: {summary: "The move of t 0-2 makes no progress"}
"""

CASES = {"replication": SET_CASES, "moving": MOVE_CASES}
