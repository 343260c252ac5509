"""`python run_bound.py PARENT_PID SIGNAL PROGRAM …` becomes PROGRAM, and gets the signal with the number SIGNAL when
the parent process ends.

This is a separate program instead of subprocess's `preexec_fn`, which may deadlock in a process with threads. It
imports nothing of metaq, so that it starts in milliseconds. It also works if the parent is ended by SIGKILL, but only
on Linux (prctl(2)). On other systems, PROGRAM outlives a killed parent.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, number, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent ended before prctl
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
