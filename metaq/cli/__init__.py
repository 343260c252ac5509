"""The command line `metaq`: one file per command, each loaded only when it is called."""

from .app import main

__all__ = ["main"]
