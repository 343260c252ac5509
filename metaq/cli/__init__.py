"""The command line `metaq`: one file per command, each loaded only when it is called."""

import gc
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the process's command line and exit with its code: the program `metaq`."""
    # until the command is loaded: modules make no garbage, and collecting would take a tenth of a short command's time
    gc.disable()
    from .app import main as run_program

    gc.freeze()  # a help text ends here; the interpreter's last collection would take a sixth of its time
    run_program()
