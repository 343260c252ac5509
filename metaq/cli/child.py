"""`python -m metaq.cli.child PARENT_PID COMMAND …`: the command line, in a process that ends when its parent does."""

from __future__ import annotations

import sys

from .app import main
from .servers import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    main(sys.argv[2:])
