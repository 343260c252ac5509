"""`python -m metaq.cli.child PARENT_PID MODULE ARGUMENT …`: calls MODULE.main(arguments), ends when its parent does."""

from __future__ import annotations

import sys
from importlib import import_module

from .servers import die_with_parent


def main() -> None:
    parent_pid, module, *arguments = sys.argv[1:]
    die_with_parent(int(parent_pid))
    import_module(module).main(arguments)


if __name__ == "__main__":
    main()
