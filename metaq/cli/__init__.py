"""The command line `metaq`: one file per command, each loaded only when it is called."""

import gc
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the process's command line and exit with its code: the program `metaq`."""
    # off until the command is loaded: imports make no garbage, and collections would take a tenth of a short command's
    # time
    gc.disable()
    from .app import main as run_program

    gc.freeze()  # the collection at exit skips these objects: it would take a sixth of a help text's time
    run_program()
