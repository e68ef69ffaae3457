"""The order for the launcher, made from a job's spawn: environment, directory, folder, limits, memo.

Laws
1. The spawn of a client of this machine brings the whole environment, and its umask. A spawn from another machine
   brings additions to this node's login environment.
"""

from __future__ import annotations

import os
from pathlib import Path

from transport import rlimits, this_build
from transport.job.interface import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from transport.spawn import Spawn


def order_of(spawn: Spawn, login: Mapping[str, str] | None, memo: Mapping[str, object]) -> tuple[Order, str]:
    """Return the order, and its folder as the inventory spells it, or "". Raises ProtocolError.

    `login` is the login environment, where the job comes from another machine.
    """
    made = spawn.template.derived.get("order") if spawn.template else None
    if made is None:
        made = _made(spawn, login)
        if spawn.template:
            spawn.template.derive("order", made)
    limits, cwd, folder, env, expanded, umask = made
    size = (spawn.terminal["rows"], spawn.terminal["columns"]) if spawn.terminal else None
    order = Order(spawn.argv, env, cwd, memo, folder=expanded, limits=limits, own=spawn.own, size=size)
    order.deadline, order.merged, order.umask = spawn.deadline, spawn.merged, umask
    return order, folder


def _made(
    spawn: Spawn, login: Mapping[str, str] | None
) -> tuple[list[tuple[int, int]], str, str, dict[str, str], str, int]:
    """Return the limits, the directory, its folder as spelled, the environment, the folder itself, and the umask."""
    limits = rlimits.parse(spawn.limits)
    cwd, folder = _directory(spawn)
    base: dict[str, str] = {}
    if login is not None:
        # PWD and OLDPWD of the node are not the job's: set PWD as a shell would after cd.
        base = {name: value for name, value in login.items() if name != "OLDPWD"} | {
            "PWD": cwd.rstrip("/") or "/"
        }
    term = {"TERM": spawn.terminal["term"]} if spawn.terminal and spawn.terminal["term"] else {}
    env = {**base, **term, **spawn.env}
    env["PATH"] = this_build.path_with_own(env.get("PATH", os.defpath))
    told = spawn.context.get("umask") if login is None else None
    umask = told if type(told) is int and 0 <= told <= 0o777 else -1
    return limits, cwd, folder, env, os.path.expanduser(folder), umask


def _directory(spawn: Spawn) -> tuple[str, str]:
    """The directory to start in, and the folder to make for it (workdir/tree, or workdir/folder), or "".

    A relative cwd is below that or, without a workdir, below the home. An absolute one must exist.
    """
    cwd = os.path.expanduser(spawn.cwd) if spawn.cwd is not None else ""
    if os.path.isabs(cwd):
        return cwd, ""
    if spawn.workdir is None:
        return os.path.join(Path.home(), cwd), ""
    folder = os.path.join(spawn.workdir, spawn.directory)
    return os.path.join(os.path.expanduser(folder), cwd), folder
