"""Retries and dead letters while everything is killed: `python -m tests.retries --kills 100`."""
