"""The command line `metaq`. Each command has a file of its own, which is imported only when the command is called."""

import gc
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the program `metaq` with the command line of the process, and exit with its exit code."""
    # off until the command is loaded: imports make no garbage, and collections would take a tenth of a short command's
    # time
    gc.disable()
    from .app import main as run_program

    gc.freeze()  # the collection at exit skips these objects: it would take a sixth of a help text's time
    run_program()
