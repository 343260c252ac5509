"""The command `metaq transactions`: list the open and the prepared transactions of a broker, and let an operator commit
them or roll them back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from metaq.client.questions.admin import complete_transaction, prepared_transactions
from metaq.client.transport.connection import Connection
from metaq.protocol.errors import TransactionRefused

from .cluster_access import Target, target_options
from .options import confirm, dry_run_option, json_option, yes_option
from .output import echo, say, show

__all__ = ["transactions"]


@click.group()
def transactions() -> None:
    """List the open and the prepared XA transactions of a broker. If the coordinator of a transaction does not end it,
    you can commit it or roll it back, and later make the broker forget this decision.

    \b
    Example
      metaq transactions list --broker 0
      metaq transactions rollback XID:1:00ff:01:tm --broker 0 --yes
    """


@transactions.command("list")
@target_options
@click.option("--active", is_flag=True, help="Also list open transactions that are not prepared, the largest first.")
@json_option
def list_transactions(target: Target, active: bool, as_json: bool) -> None:
    """List the prepared transactions, and the transactions on which an operator has decided and whose decision the
    broker still remembers. The oldest transaction comes first.

    \b
    Example
      metaq transactions list --broker 0 --json
      metaq transactions list --broker 0 --active
    """
    with target.connected() as connection:
        found = prepared_transactions(connection, active=active)
    show(as_json, found, ("KEY", "STATE", "PREPARED", "AGE S", "MESSAGES", "BYTES", "TOPICS"), map(_row, found))


def _row(found: Mapping[str, Any]) -> tuple[object, ...]:
    prepared_ms = found.get("prepared_at_ms") or 0
    prepared = datetime.fromtimestamp(prepared_ms / 1000, UTC).isoformat(timespec="seconds") if prepared_ms else None
    age = max(0, int(time.time() - prepared_ms / 1000)) if prepared_ms else None
    topics = ", ".join(map(str, found.get("topics") or ()))
    return (found.get("key"), found.get("state"), prepared, age, found.get("messages"), found.get("bytes"), topics)


_EFFECTS = {
    "commit": "Write the messages of the transaction now; its coordinator learns of it by a heuristic code.",
    "rollback": "Drop the messages of the transaction; its coordinator learns of it by a heuristic code. One that is "
    "open and not prepared ends as by its timeout.",
    "complete": "Give the transaction up without saying how; its coordinator learns of it by a heuristic code.",
    "forget": "Drop the note that an operator has decided the transaction.",
}


def _check_there(connection: Connection, key: str, action: str) -> None:
    """Raise TransactionRefused if the broker has no transaction with this key, or if `action` is not possible for
    it.
    """
    wanted = "decided" if action == "forget" else "prepared"
    ends = ("prepared", "active") if action == "rollback" else (wanted,)
    found = {
        each.get("key"): state if (state := each.get("state")) in ("prepared", "active") else "decided"
        for each in prepared_transactions(connection, active=True)
    }
    if found.get(key) not in ends:
        raise TransactionRefused(
            f"{connection.endpoint} has no {wanted} transaction {key!r}: `metaq transactions list` shows those it has"
        )


def _deciding(action: str) -> click.Command:
    @target_options
    @dry_run_option
    @yes_option
    @json_option
    @click.argument("key")
    def decide(target: Target, dry_run: bool, yes: bool, as_json: bool, key: str) -> None:
        if dry_run:
            with target.connected() as connection:
                _check_there(connection, key, action)
            echo(f"would {action} {key} on {connection.endpoint}")
            return
        confirm(f"{action} {key}? Its coordinator may have decided otherwise", yes=yes)
        with target.connected() as connection:
            complete_transaction(connection, key, action)
        say(as_json, {"key": key, "action": action}, f"{action}: {key}")

    text = f"{_EFFECTS[action]}\n\nKEY: as `metaq transactions list` shows it.\n\n\b\nExample\n"
    return click.command(action, help=f"{text}  metaq transactions {action} XID:1:00ff:01:tm --broker 0")(decide)


for _action in _EFFECTS:
    transactions.add_command(_deciding(_action))
