"""`python -m metaq.broker SERVER.INI`: run one broker in the foreground, like `metaq broker -f SERVER.INI`."""

import sys

from .main import run

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m metaq.broker SERVER.INI")
    sys.exit(run(sys.argv[1]))
