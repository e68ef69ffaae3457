"""The cost of a program: `peak.py FILE WORD…` runs it, and writes bytes of memory and of files, its children included.

The kernel counts the memory of the process by which a program was started as its own, so that is this small one.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
    _, status, usage = os.wait4(pid, 0)
    with open(sys.argv[1], "w") as file:
        file.write(f"{usage.ru_maxrss * 1024} {usage.ru_oublock * 512}")
    os._exit(os.waitstatus_to_exitcode(status) & 255)
