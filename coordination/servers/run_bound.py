"""`python run_bound.py PARENT_PID SIGNAL PROGRAM …` replaces itself by PROGRAM in the same process (exec). When the
parent process PARENT_PID ends, PROGRAM gets the signal with the number SIGNAL.

metaq uses this program instead of subprocess's `preexec_fn`, because `preexec_fn` may deadlock in a process with
threads. The program imports nothing of metaq, so that it starts in milliseconds. On Linux (prctl(2)) PROGRAM gets the
signal even if the parent process is ended by SIGKILL. On other systems, PROGRAM gets no signal if its parent is killed,
and continues to run.
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
