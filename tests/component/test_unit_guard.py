"""The guard of the unit tests fails those that open a port, start a process, sleep or poll."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUILTY = """
import socket, subprocess, sys, threading, time
from tests.waiting import {imported}

def test_binds():
    socket.create_server(("127.0.0.1", 0)).close()

def test_connects_from_a_thread():
    def connect():
        with socket.socket() as sock:
            sock.connect_ex(("127.0.0.1", 1))
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()

def test_starts_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_sleeps():
    time.sleep(0.001)
"""
INNOCENT = """
def test_uses_a_socketpair_and_another_thread_that_sleeps():
    for each in socket.socketpair():
        each.close()
    thread = threading.Thread(target=time.sleep, args=(0.001,))
    thread.start()
    thread.join()
"""


def outcome(tmp_path, source):
    shutil.copy(ROOT / "tests" / "unit" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.splitlines()[-1].rpartition(" in ")[0]


def test_what_is_forbidden_fails_and_nothing_else_does(tmp_path):
    assert outcome(tmp_path, GUILTY.format(imported="DEADLINE") + INNOCENT) == "5 passed, 4 errors"


def test_a_module_that_can_poll_fails(tmp_path):
    assert outcome(tmp_path, GUILTY.format(imported="eventually") + INNOCENT) == "5 errors"
