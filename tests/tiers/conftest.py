"""What the tests of the tiers share."""

import logging
import subprocess
import tempfile

import pytest


def _may_mount() -> bool:
    """As root, in most places. A limit on file sizes is tested as a full disk everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        try:
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                return False
        except OSError:
            return False
        return subprocess.run(["umount", folder], check=False).returncode == 0


collect_ignore = [] if _may_mount() else ["test_disk_small_fs.py"]


@pytest.fixture(autouse=True)
def our_loggers_speak() -> None:
    """A server in a test before may have silenced all that set no level of their own."""
    logging.getLogger("agentkv").setLevel(logging.INFO)
