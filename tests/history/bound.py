"""`python bound.py PARENT_PID PROGRAM …`: become PROGRAM, and be killed when the parent ends, however it ends.

As coordination/run_bound.py, but by SIGKILL: a process that is frozen would sleep through anything else. Linux only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before prctl
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
