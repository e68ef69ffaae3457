"""The files of the configuration of ssh: a check of owner and mode, and stamps that tell a changed file."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Optional

Stamp = Optional[tuple[int, int, int]]  # of a file that is not there: None


class Unsafe(ValueError):
    """A file that others could have written; `hint` is the cure."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.hint = hint


def stamp_of(facts: os.stat_result) -> Stamp:
    # The time of the inode: tools that copy can set the other one back.
    return facts.st_ctime_ns, facts.st_ino, facts.st_size


def stamp(path: str) -> Stamp:
    """Return what tells a changed file from the one before; an entry that is made or removed changes a directory."""
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None


def check_owner(path: Path, facts: os.stat_result) -> None:
    """Raise Unsafe if a user other than this one and root owns the file, or may write it.

    The group may, where it is the owner's private one: umask 002 makes such files, and ssh of Debian takes them.
    """
    if facts.st_uid not in (0, os.getuid()):
        detail = f"bad owner of {path}: user id {facts.st_uid}, neither root nor you"
        raise Unsafe(detail, f"see who wrote it, then: chown {os.getuid()} {path}")
    if facts.st_mode & 0o002 or (facts.st_mode & 0o020 and not _is_private(facts)):
        detail = f"bad permissions of {path}: others can write it (mode {facts.st_mode & 0o7777:04o})"
        raise Unsafe(detail, f"see what is in it, then: chmod go-w {path}")


def _is_private(facts: os.stat_result) -> bool:
    """Return whether the file's group is its owner's private one: of the owner's name, with no other member."""
    try:
        owner, group = pwd.getpwuid(facts.st_uid), grp.getgrgid(facts.st_gid)
    except KeyError:
        return False
    alone = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return alone and set(group.gr_mem) <= {owner.pw_name}
