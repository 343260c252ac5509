"""`python run_bound.py PARENT_PID PROGRAM …`: become PROGRAM, and get SIGTERM when the parent ends, even by SIGKILL.

A program of its own instead of subprocess's `preexec_fn`, which may deadlock in a process with threads. It imports
nothing of metaq, so that it starts in milliseconds. Linux only (prctl(2)); elsewhere PROGRAM outlives a killed parent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it ended before prctl
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
