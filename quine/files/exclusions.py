"""Names excluded from user trees: quine's own directories on this machine, and names that are obeyed where they lie.

Laws
1. A put, get or sync of a tree leaves out the data directory and a local store, and `--delete` does not remove them:
   `quine fs sync --delete tier:src .` once removed the tapes, and the very store that it had read.
2. A tree that comes from another machine lacks the names that quine or git obeys at its top: otherwise an agent that is
   not trusted could write the user's next inventory, persona or hook. Each name left out is said. So is a directory
   of an interrupted staging, whose renames quine would finish if it were the user's. So is a name that a file
   system takes for one of them, as it ignores case or has short names: `.GIT`, `inventory.toml.`, `PERSON~1`.
   Results lack these names at any level: the next `git status` in `src` runs a command of `src/.git/config`.
3. A path that names one of them, or something in it, explicitly is not excluded.
4. A file that quine obeys because an option or a variable names it (the inventory, a guest that is a program, prices, a
   key) is replaced by no result, also not by one of its name: the host that wrote it would run a command here.
"""

from __future__ import annotations

import os
import stat
import sys

from quine.base import data_directory, dirs
from quine.base.errors import say
from quine.files import paths
from transport.address import home, user_directory
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from quine.files.api import Tier


OBEYED = (".git", ".quine", "inventory.toml", "personas")  # a file or a link of that name, too
ASIDE = ".quine-aside-"  # prefix of the names of the private directories of staging

LINKS = 40  # that a path may lead through, as for the kernel
FILES = ("QUINE_INVENTORY", "QUINE_PRICES", "QUINE_API_KEY_FILE")  # variables that name a file


def named_files(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of what quine obeys here: the files of variables, the user's own ones, and its own program."""
    for name in FILES:
        yield environ.get(name, "")
    yield from _program(environ.get("QUINE_SHELL", ""))
    base = environ.get("QUINE_API_BASE", "")
    if environ.get("QUINE_API_TYPE") == "program":
        yield from _program(base)
    elif "://" not in base:
        yield base  # a script or a tape
    words = [word.strip("'\"()") for word in environ.get("QUINE_API_KEY_COMMAND", "").split()]
    for word in words:
        yield from _program(word)
    yield from filter(os.path.isfile, words)  # files that the command may read
    for kind in ("config", "state", "cache"):  # the last one has the builds that are put on hosts
        yield os.path.join(user_directory(kind, environ), "quine")
    yield os.path.join(user_directory("config", environ), "quine", "prices.toml")
    yield os.path.join(home(environ), ".ssh")
    if sys.prefix != sys.base_prefix:
        yield sys.prefix
    if os.path.isfile(sys.argv[0]):
        yield sys.argv[0]
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(data_directory.__file__))))
    yield from (os.path.join(top, name) for name in ("quine", "transport", "deploy"))


def _program(word: str) -> Iterator[str]:
    """Yield the path of a program, whose bare name is searched on PATH."""
    if "/" in word:
        yield word
    elif word:
        import shutil

        yield shutil.which(word) or ""


def located(paths: Iterable[str]) -> list[bytes]:
    """Return the real paths of files, and of links that lead to them: while these stay, `paths` mean the same."""
    found: dict[bytes, None] = {}
    for path in filter(None, paths):
        found.update(dict.fromkeys(_way(os.fsencode(dirs.absolute(os.path.expanduser(path))))))
    return [*found]


def _way(path: bytes) -> Iterator[bytes]:
    """Yield the links that an absolute path leads through, and where it ends."""
    done, todo, links = b"/", path.split(b"/")[::-1], 0
    while todo and links <= LINKS:
        part = todo.pop()
        if part in (b"", b".", b".."):
            done = os.path.dirname(done) if part == b".." else done
            continue
        done = os.path.join(done, part)
        try:
            target = os.readlink(done)
        except OSError:
            continue
        yield done
        links += 1
        todo += target.split(b"/")[::-1]
        done = b"/" if target[:1] == b"/" else os.path.dirname(done)
    yield done


def is_obeyed(name: str) -> bool:
    """Return whether quine or git obeys a name, on some file system."""
    form = paths.plain(name) if _may_be_obeyed(name) else ""
    return bool(form) and any(paths.stands_for(form, each) for each in OBEYED)


def obeyed(path: str) -> str:
    """Return the first name of a path if quine or git obeys it there, on some file system; "" if not."""
    first = path.partition("/")[0]
    return first if is_obeyed(first) or first.lower().startswith(ASIDE) else ""


def _may_be_obeyed(text: str) -> bool:
    """Return False if no name in a text is an alias of one of OBEYED: a quick look, for very many names."""
    low = text.lower()
    plain = low.isascii() and "~" not in low and "git" not in low and "quine" not in low
    return not plain or "inventory" in low or "personas" in low


class Places:
    """Paths below a directory, each in whatever way some file system spells it, and others `exactly` as they are.

    With `deep` those of the names OBEYED at any level, too: git obeys `src/.git`, and quine what is in a directory that
    it is started in.
    """

    def __init__(self, names: Iterable[str], exactly: Iterable[str] = (), deep: bool = False) -> None:
        self.names, self._exactly = sorted(names), sorted(exactly)
        parts = [name.split("/") for name in self.names if {".", ".."}.isdisjoint(name.split("/"))]
        self._wanted = [list(map(_form, each)) for each in parts]
        self._first = ""
        self._begin: list[list[str]] = []  # those that the last name began as
        self._deep = deep

    def begin(self, first: str) -> list[list[str]]:
        """Return those that a path with this first name may be at or in."""
        if first != self._first:
            form = _form(first)
            self._first = first
            self._begin = [wanted for wanted in self._wanted if paths.stands_for(form, wanted[0])]
        return self._begin

    def at(self, name: str) -> str:
        """Return the path that a name is at or in, as it is spelled there; "" if it is at none."""
        for exact in self._exactly:
            if paths.within(name, exact):
                return exact
        if not (begin := self.begin(name.partition("/")[0])):
            return self._obeyed(name)
        parts = name.split("/")
        for wanted in begin:
            if len(parts) >= len(wanted) and all(map(paths.stands_for, map(_form, parts), wanted)):
                return "/".join(parts[: len(wanted)])
        return self._obeyed(name)

    def _obeyed(self, name: str) -> str:
        if not (self._deep and _may_be_obeyed(name)):
            return ""
        return next((path for path in [*paths.ancestors(name), name] if is_obeyed(paths.name(path))), "")

    def any_obeyed(self, names: bytes) -> bool:
        """Return whether one of these names, together in one text, may be obeyed below the top."""
        return self._deep and _may_be_obeyed(os.fsdecode(names))

    def below(self, folder: str, listed: list[str]) -> list[str]:
        """Return which names of a directory are obeyed there; [] if the directory itself is such a place, or in one."""
        if not (self._deep and _may_be_obeyed("\n".join(listed))):
            return []
        return [] if self.at(folder) else [name for name in listed if is_obeyed(name)]

    def there(self, folder: str, tops: Iterable[bytes]) -> list[str]:
        """Return the paths that are there, of which one of `tops` may be above; b"" is above all."""
        found = {name for name in self._exactly if os.path.lexists(os.path.join(folder, name))}
        if b"" not in tops and not any(len(wanted) > 1 for wanted in self._wanted):
            return sorted(found)
        listed: dict[str, list[tuple[str, str]]] = {}
        for wanted in self._wanted:
            level = [""]
            for part in wanted:
                for above in level:
                    if above not in listed:
                        listed[above] = _listed(os.path.join(folder, above))
                level = [
                    paths.join(above, name)
                    for above in level
                    for name, form in listed[above]
                    if paths.stands_for(form, part)
                ]
            found.update(level)
        return sorted(found)


class Left:
    """The names at any level of trees that a pattern brings, which are left out; `paths` are those that were found."""

    def __init__(self, places: Places, named: Collection[str]) -> None:
        """`named`: paths that patterns name, which come."""
        self._places, self._named = places, named
        self.paths: set[str] = set()

    def __call__(self, prefix: bytes, listed: list[str]) -> list[str]:
        """Return those of the names in a directory that are left out."""
        folder = os.fsdecode(prefix)
        found = self._places.below(folder.rstrip("/"), listed)
        self.paths.update(path for name in found if (path := folder + name) not in self._named)
        return found


class Kept:
    """Files below a directory that no result replaces: those that the caller writes (`own`), and those that it obeys.

    The latter are given as `located` returns them. Under another name, by a hard link or another mount of the
    directory, an obeyed file is known by its device and inode.
    """

    def __init__(self, folder: bytes, own: Iterable[str], obeyed: Iterable[bytes] = ()) -> None:
        self._folder, top = folder, os.path.realpath(folder).rstrip(b"/") + b"/"
        obeyed = list(obeyed)
        below = {os.fsdecode(path[len(top) :]) for path in obeyed if path.startswith(top)} - {*own}
        self.obeyed = {name for name in below if below.isdisjoint(paths.ancestors(name))}
        self.places = Places({*own, *self.obeyed})
        self.names = self.places.names
        self._above = Places({above for name in self.names for above in paths.ancestors(name)})
        self.inodes: dict[int, set[int]] = {}  # of the files, and their devices
        for path in obeyed:
            with contextlib.suppress(OSError):
                facts = os.lstat(path)
                if not stat.S_ISDIR(facts.st_mode):
                    self.inodes.setdefault(facts.st_ino, set()).add(facts.st_dev)

    def fault(self, name: bytes, is_directory: bool) -> str:
        """Return why a result of this name cannot come, as the file system here takes names; "" if it can."""
        text = os.fsdecode(name)
        if not self.places.begin(text.partition("/")[0]):
            return ""
        if place := self._place(self.places, text):
            return "is obeyed by quine here" if self._is_obeyed(place) else "is written by this command"
        if not is_directory and self._place(self._above, text) == text:
            return "stands where a directory of a file is that this command writes or obeys"
        return ""

    def _place(self, places: Places, text: str) -> str:
        place = places.at(text)
        path = os.path.join(self._folder, os.fsencode(place))
        if not place or place in places.names:
            return place
        is_another = not os.path.lexists(path) or os.path.basename(path) in os.listdir(os.path.dirname(path))
        return "" if is_another else place

    def _is_obeyed(self, place: str) -> bool:
        return bool(Places(self.obeyed).at(place))

    def is_obeyed(self, name: bytes, inode: int) -> bool:
        """Return whether the file here of this name and inode is one that quine obeys."""
        if inode not in self.inodes:
            return False
        facts = os.lstat(os.path.join(self._folder, name))
        return facts.st_dev in self.inodes.get(facts.st_ino, ())


def _form(name: str) -> str:
    return paths.plain(name) or name


def _listed(folder: str) -> list[tuple[str, str]]:
    """Return the names in a directory, and their forms; [] if it is none, or cannot be read."""
    with contextlib.suppress(OSError):
        return [(name, _form(name)) for name in os.listdir(folder)]
    return []


def own(tier: Tier, top: str) -> frozenset[str]:
    """Paths of quine's own directories below `top`, relative to it; a link to one counts as one. Raises OSError.

    Private directories of staging are among them.
    """
    places = [data_directory.named()]
    if tier.directory_here():
        places.append(tier.directory_here())
    top = os.path.realpath(top)
    found = set()
    for place in map(os.path.abspath, places):
        named = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        for path in (named, os.path.realpath(place)):
            relative = os.path.relpath(path, top)
            if relative != "." and relative.partition("/")[0] != "..":
                found.add(relative)
    with contextlib.suppress(OSError):
        found.update(name for name in os.listdir(top) if name.startswith(ASIDE))
    return frozenset(found)


def obeyed_below(top: str) -> frozenset[str]:
    """Return the paths below `top`, relative to it, of what quine obeys for another reason than its name."""
    return frozenset(Kept(os.fsencode(top), (), located(named_files(os.environ))).obeyed)


def at(path: str, places: Iterable[str]) -> str:
    """Return the one of `places` that a path is or lies in; "" if it is in no place of them."""
    return next((place for place in places if paths.within(path, place)), "")


def naming(place: str, named: Iterable[str]) -> list[str]:
    """Return those of `named`, paths or patterns, that name `place` or something in it explicitly."""
    return [word for word in named if paths.within(word, place)]


def left_out(places: Iterable[str], option: Callable[[str], str]) -> str:
    """Return the message about `places` that were left out; `option` returns what brings one. "" if there are none."""
    from transport.text import harmless

    found = [harmless(place) for place in sorted(places)]
    if not found:
        return ""
    which = "names" if len(found) > 1 else "a name"
    return f"{', '.join(found)} left out, {which} that quine or git obeys; to have it: {', '.join(map(option, found))}"


def written_here(names: Iterable[str]) -> str:
    """Return the message about results that were left out since the caller writes there; "" if there are none."""
    from transport.text import harmless

    found = ", ".join(map(harmless, names))
    return f"{found} left out of --returns, since this command writes there itself" if found else ""


def obeyed_here(names: Iterable[str]) -> str:
    """Return the message about results that were left out since quine obeys the files here; "" for no names."""
    from transport.text import harmless

    found = ", ".join(map(harmless, names))
    return f"{found} left out of --returns, since quine obeys it here" if found else ""


def say_left_out(places: Iterable[str], option: Callable[[str], str]) -> None:
    """Print that message."""
    if text := left_out(places, option):
        say(f"quine: {text}\n")


def within(path: str, places: frozenset[str]) -> bool:
    """Return whether `path` is one of `places` or inside one."""
    return any(paths.within(path, place) for place in places)


def holds(path: str, places: frozenset[str]) -> bool:
    """Return whether `path` is one of `places` or a directory above one."""
    return any(paths.within(place, path) for place in places)
