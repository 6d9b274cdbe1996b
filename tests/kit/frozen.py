"""A server that has stopped answering, as it does when its machine swaps or its disk hangs."""

import os
import signal
import subprocess


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Return when every thread of it stands: until then it may answer some calls more."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def thaw(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGCONT)
