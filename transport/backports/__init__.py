"""transport.backports: names of the standard library that this code uses and this interpreter lacks.

PyPy lacks many calls of Linux, and a CPython that is older than 3.11 or was built on an old system lacks a few. The
package `transport` loads this room there, before any other module of the project. Elsewhere it is never loaded.

May import: nothing of this project.

Laws
1. A name is added to its standard module only where it is missing, with the meaning that CPython's documentation gives
   it. A keyword argument that nothing here uses is left out. A name that is there and does the opposite is replaced.
2. A call fails with OSError and the errno of the kernel. An interrupted call is made again, after the handlers of
   signals have run (PEP 475). Such a handler calls nothing of this room: the errno of ctypes is one for a thread.
3. Memory that the kernel reads or writes is held by a local variable until the call has returned. No call keeps it.
4. Numbers are those of Linux on x86_64 and aarch64: uapi/asm-generic/{fcntl,unistd,socket,ioctls,siginfo}.h,
   uapi/linux/{fcntl,wait,fs,memfd}.h and linux/socket.h. Where the two differ, the table says so.
5. A name that cannot be had stays missing: without ctypes, all calls of libc.
"""

from __future__ import annotations

import fcntl
import gc
import os
import platform
import signal
import socket
import sys
import termios

from transport.backports import files, libc, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

_OF_OS = {
    "O_ACCMODE": 0o3,
    "O_PATH": 0o10000000,
    "O_TMPFILE": 0o20000000 | os.O_DIRECTORY,  # O_DIRECTORY differs between the machines
    "SEEK_DATA": 3,
    "SEEK_HOLE": 4,
    "ST_RDONLY": 1,
    "MFD_CLOEXEC": 1,
    "MFD_ALLOW_SEALING": 2,
    "POSIX_SPAWN_OPEN": 0,
    "POSIX_SPAWN_CLOSE": 1,
    "POSIX_SPAWN_DUP2": 2,
    "P_ALL": 0,
    "P_PID": 1,
    "P_PGID": 2,
    "P_PIDFD": 3,
    "WSTOPPED": 2,
    "WEXITED": 4,
    "WCONTINUED": 8,
    "WNOWAIT": 0x01000000,
    "CLD_EXITED": 1,
    "CLD_KILLED": 2,
    "CLD_DUMPED": 3,
    "CLD_TRAPPED": 4,
    "CLD_STOPPED": 5,
    "CLD_CONTINUED": 6,
}
_OF_FCNTL = {
    "FASYNC": 0o20000,
    "F_DUPFD_CLOEXEC": 1030,
    "F_SETPIPE_SZ": 1031,
    "F_GETPIPE_SZ": 1032,
    "F_ADD_SEALS": 1033,
    "F_GET_SEALS": 1034,
    "F_SEAL_SEAL": 1,
    "F_SEAL_SHRINK": 2,
    "F_SEAL_GROW": 4,
    "F_SEAL_WRITE": 8,
    "F_OFD_GETLK": 36,
    "F_OFD_SETLK": 37,
    "F_OFD_SETLKW": 38,
}
_OF_SOCKET = {"SO_PEERCRED": 17, "MSG_NOSIGNAL": 0x4000, "MSG_CMSG_CLOEXEC": 0x40000000}
_OF_TERMIOS = {"TIOCGWINSZ": 0x5413, "TIOCSWINSZ": 0x5414}


def add_missing() -> None:
    """Add every name that its module lacks."""
    import _signal  # type: ignore[import-not-found]
    import _socket

    for module, numbers in ((os, _OF_OS), (fcntl, _OF_FCNTL), (termios, _OF_TERMIOS)):
        _add(module, numbers)
    for module in (socket, _socket):  # transport.lean takes the C modules below the standard ones
        _add(module, _OF_SOCKET)
    _add(os, {"writev": files.writev, "readv": files.readv, "preadv": files.preadv})
    _add(gc, {"freeze": files.freeze, "unfreeze": files.freeze})
    _add(termios, {"tcgetwinsize": files.tcgetwinsize, "tcsetwinsize": files.tcsetwinsize})
    if libc.ctypes is None:
        return
    _add(
        os,
        {
            "pidfd_open": processes.pidfd_open,
            "waitid": processes.waitid,
            "waitid_result": processes.WaitidResult,
        },
    )
    if platform.machine() in files.MEMFD_CREATE:
        _add(os, {"memfd_create": files.memfd_create})
    if not hasattr(os, "copy_file_range") and libc.in_libc("copy_file_range"):
        _add(os, {"copy_file_range": files.copy_file_range})
    _add(os, {"posix_spawn": processes.posix_spawn, "posix_spawnp": processes.posix_spawnp})
    if sys.implementation.name == "pypy":  # its os.link takes follow_symlinks for the opposite
        os.link = files.link
    for module in (signal, _signal):
        _add(
            module, {"pidfd_send_signal": processes.pidfd_send_signal, "sigtimedwait": processes.sigtimedwait}
        )


def _add(module: ModuleType, names: Mapping[str, object]) -> None:
    for name, value in names.items():
        if not hasattr(module, name):
            setattr(module, name, value)
