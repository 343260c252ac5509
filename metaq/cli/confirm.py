"""Asking before something is destroyed."""

from __future__ import annotations

import sys

import click

from metaq.protocol.errors import ClientError

__all__ = ["confirm"]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr, unless `yes`. Raises ClientError for a no, and where nobody can answer; click.Abort for Ctrl-C."""
    if yes:
        return
    try:
        answer = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise ClientError("nobody answers on stdin, so nothing was changed: add --yes to do it unasked") from None
    if not answer:
        raise ClientError("nothing more was changed")
