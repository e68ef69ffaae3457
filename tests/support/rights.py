"""Processes with the rights of an ordinary user: the kernel hides from them what it shows to root.

Tests are often run as root, which looks into processes that are closed to others of their user.
"""

from __future__ import annotations

import os
import shutil

import pytest


def ordinary() -> list[str]:
    """Return the words before a command by which it, and all below, has no capability."""
    if os.getuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    return ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
