"""~/.ssh/config and the system's configuration, read as OpenSSH reads them (ssh_config(5)).

Laws
1. The first value of an option wins, the user's file comes before the system's. An option that is not set is "".
2. `Host`, `Match` and `Include` mean here what they mean to ssh; tests compare this with `ssh -G`.
3. Nothing is skipped silently: an option that is not applied has a line in `notes`, and one that cannot be left out
   without a change of what the connection means is a ValueError (`directives.py`). So is a file that cannot be read.
4. A file that another user could have written is refused, as ssh refuses it: a `Match exec` in it would run here.
   The system's own file is not checked; a file that it includes is.
"""

from __future__ import annotations

import fnmatch
import getpass
import glob
import hashlib
import os
import pwd
import re
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from transport.carrier.config_files import Stamp, stamp, stamp_of
from transport.carrier.ssh import canonical, directives
from transport.provenance import safe_path

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEEPEST = 16  # files that include each other
EXEC = 20  # seconds for a command of `Match exec`
_QUOTED = re.compile(r"\s*(?:(#.*)|((?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\\[\"' \\]|[^\s\"'])+))")
_HOP = re.compile(
    r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<bracketed>[^\]]+)\]|(?P<host>[^:]+|.*:.*:.*?))(?::(?P<port>\d+))?/?"
)
_TIME = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class Asked:
    """The words of a command line of ssh, which come before all files."""

    host: str
    user: str = ""
    port: int | None = None


@dataclass(frozen=True)
class _Place:
    """A file as it is read: `base` is where a relative Include is looked up."""

    path: Path
    base: Path
    depth: int = 0
    line: int = 0
    checked: bool = True  # its owner and mode
    never: bool = False  # included where the lines do not count: read all the same, as by ssh

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"{self.path} line {self.line}: {what}")


@dataclass
class Config:
    """The options for one host. Made by `read`."""

    asked: Asked
    runs: bool = True  # False: no command is run, no name is looked up, and `open` says where that decides
    notes: list[str] = field(default_factory=list)
    files: dict[str, Stamp] = field(default_factory=dict)  # all that was read or looked for, with directories
    open: bool = False
    host: str = ""  # as `Host` patterns see it: the canonical name in the second pass
    names: list[str] = field(default_factory=list)  # that stand after `Host` and are no patterns
    literal: bool = False  # whether the host asked for is such a name, of a `Host` that counts
    _values: dict[str, list[str]] = field(default_factory=dict)
    _final: bool = False
    _wants_final: bool = False

    def get(self, name: str) -> str:
        """Return the first word of an option; "" if it is not set."""
        return self._values.get(name.lower(), [""])[0]

    def words(self, name: str) -> list[str]:
        """Return all words of an option, of every line for one that adds up (IdentityFile)."""
        return self._values.get(name.lower(), [])

    def yes(self, name: str) -> bool:
        return self.get(name).lower() in ("yes", "true")

    def seconds(self, name: str) -> float | None:
        """Return a time as ssh writes it (`90`, `1m30s`), or None."""
        text = self.get(name).lower()
        parts = re.findall(r"(\d+)([smhdw]?)", text)
        if "".join(f"{number}{unit}" for number, unit in parts) != text:
            if text == "none":
                return None
            raise ValueError(f"{name} {text}: not a time")
        return float(sum(int(number) * _TIME[unit] for number, unit in parts)) or None

    # Derived from the options

    @property
    def local_user(self) -> str:
        """Return the user of this process, whatever $USER says, as ssh does."""
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return getpass.getuser()

    @property
    def user(self) -> str:
        return self.get("user") or self.local_user

    @property
    def port(self) -> int:
        return int(self.get("port") or 22)

    @property
    def hostname(self) -> str:
        """Return the name or address to connect to."""
        named = self.get("hostname")
        return re.sub("%[%h]", lambda token: {"%%": "%", "%h": self.host}[token[0]], named) or self.host

    def values(self) -> str:
        """Return all options as text, to compare."""
        return repr(sorted(self._values.items()))

    @property
    def known_as(self) -> str:
        return (self.get("hostkeyalias") or self.hostname).lower()

    def expand(self, text: str, file: bool = False) -> str:
        """Replace %-tokens; for the name of a file also `${VARIABLE}` and `~`. Raises ValueError."""
        tokens = self._tokens()

        def token(found: re.Match[str]) -> str:
            if found[1] not in tokens:
                raise ValueError(f"{text}: unknown token %{found[1]}")
            return tokens[found[1]]

        def variable(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                raise ValueError(f"{text}: there is no variable {found[1]}")
            return os.environ[found[1]]

        text = re.sub("%(.)", token, text)
        return os.path.expanduser(re.sub(r"\$\{(.*?)\}", variable, text)) if file else text

    def _tokens(self) -> dict[str, str]:
        local, port = socket.gethostname(), str(self.port)
        jump = self.get("proxyjump")
        jump = "" if jump.lower() == "none" else jump.rpartition(",")[2].rpartition("@")[2]
        whole = local + self.hostname + port + self.user + jump
        return {
            "%": "%",
            "C": hashlib.sha1(whole.encode()).hexdigest(),
            "d": os.path.expanduser("~"),
            "h": self.hostname,
            "i": str(os.getuid()),
            "j": jump,
            "k": self.get("hostkeyalias") or self.asked.host,
            "L": local.partition(".")[0],
            "l": local,
            "n": self.asked.host,
            "p": port,
            "r": self.user,
            "u": self.local_user,
        }

    # Reading

    def file(self, place: _Place) -> None:
        """Read a file; one that does not exist is empty. Raises ValueError, OSError."""
        if place.depth > DEEPEST:
            raise ValueError(f"{place.path}: too many files include each other")
        try:
            with place.path.open(encoding="utf-8", errors="surrogateescape") as file:
                facts = os.fstat(file.fileno())
                self.files[str(place.path)] = stamp_of(facts)
                if place.checked:
                    safe_path.judge(facts, str(place.path))
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            self.files[str(place.path)] = None
            return
        active = not place.never
        for number, line in enumerate(text.splitlines(), 1):
            active = self._line(line, replace(place, line=number), active)

    def _line(self, line: str, place: _Place, active: bool) -> bool:
        """Take one line; return whether the next ones count."""
        found = re.match(r"\s*\"?([^\s=#\"][^\s=\"]*)\"?[\s]*=?[\s]*(.*?)\s*$", line)
        if found is None:
            return active
        name, rest = found[1].lower(), found[2]
        words = [rest][: len(rest)] if name in directives.RAW else split(rest, place)
        if not words:
            raise place.wrong(f"{found[1]} has no value")
        if name == "host":
            matches = listed(self.host, words) and not place.never
            self.names += [word for word in words if not re.search("[*?!]", word)]
            self.literal |= matches and self.asked.host in words
            return matches
        if name == "match":
            return not place.never and self._matches(words, place)
        if name == "include":
            inner = replace(place, depth=place.depth + 1, checked=True, never=not active)
            for pattern in words:
                where = os.path.join(place.base, os.path.expanduser(pattern))
                self._note_directories(where)
                for path in sorted(glob.glob(where)):
                    self.file(replace(inner, path=Path(path)))
        elif active:
            self._take(found[1], words, place)
        return active

    def _note_directories(self, pattern: str) -> None:
        """Note where a file that would match may come to be."""
        if not glob.has_magic(pattern):
            self.files.setdefault(pattern, stamp(pattern))
        while glob.has_magic(pattern):
            pattern = os.path.dirname(pattern)
            for path in glob.glob(pattern) or [pattern]:
                self.files[path] = stamp(path)

    def _take(self, name: str, words: list[str], place: _Place) -> None:
        key = name.lower()
        if key in directives.ADDED:
            there = self._values.setdefault(key, [])
            there += [word for word in words if word not in there]
            return
        proxied = set(self._values) & {"proxycommand", "proxyjump"}  # the first of the two wins
        if key in ("proxycommand", "proxyjump") and proxied and self.get("proxyjump").lower() != "none":
            return
        if key in self._values:
            return
        if key == "port" and not words[0].isdigit():
            raise place.wrong(f"Port {words[0]}: not a number")
        directives.refuse(key, name, words[0], f"{place.path} line {place.line}")
        self._values[key] = words
        if key == "proxycommand":
            self._values[key] = [words[0]]
        if not self._ignored(key) and directives.passed_over(key, words[0]):
            self.notes.append(f"pass over {name} {' '.join(words)[:100]} ({place.path} line {place.line})")

    def _ignored(self, key: str) -> bool:
        return any(listed(key, [word], True) for word in self.words("ignoreunknown"))

    def _matches(self, words: list[str], place: _Place) -> bool:
        """Return whether a `Match` line matches; its commands run only if all before them has matched."""
        matching, words = True, list(words)
        while words:
            attribute, equals, value = words.pop(0).partition("=")
            negated, attribute = attribute.startswith("!"), attribute.lstrip("!").lower()
            if attribute in ("canonical", "final"):
                self._wants_final |= attribute == "final"
                result = self._final
            elif attribute == "all":
                result = True
            else:
                if not equals and not words:
                    raise place.wrong(f"Match {attribute} has no value")
                value = value if equals else words.pop(0)
                result = matching and self._attribute(attribute, value, place)
            matching = matching and result != negated
        return matching

    def _attribute(self, attribute: str, value: str, place: _Place) -> bool:
        facts = {
            "host": self.hostname,
            "originalhost": self.asked.host,
            "user": self.user,
            "localuser": self.local_user,
            "tagged": self.get("tag"),
            "sessiontype": "exec",
            "command": "",
        }
        if attribute == "exec" and not self.runs:
            self.open = True
            return False
        if attribute == "exec":
            return _succeeds(self.expand(value), place)
        if attribute not in facts:
            raise place.wrong(
                f'Match {attribute} is not supported here; transport = "openssh" uses ssh itself'
            )
        return listed(facts[attribute], value.split(","), attribute in ("host", "originalhost"))

    # The second pass

    def settle(self, files: list[_Place]) -> None:
        """Read the files, make the name canonical, and read them again if that or a `Match final` asks for it."""
        for place in files:
            self.file(place)
        self.host = self.hostname.lower()
        found = ""
        if self.runs:
            found = canonical.of(self.host, self.get, self.words)
        elif self.get("canonicalizehostname").lower() not in ("", "no", "false"):
            self.open = True
        if not found and not self._wants_final:
            self.host = self.asked.host
            return
        self.host = found or self.host
        self._values["hostname"] = [self.host.replace("%", "%%")]
        self._final = True
        for place in files:
            self.file(place)


def read(asked: Asked, user_file: Path, system_file: Path, config: Config | None = None) -> Config:
    """Return the options for a host. Raises ValueError and OSError with the file and the line.

    A `config` that is given is filled, so that its `files` are known also after an error.
    """
    config = config or Config(asked)
    config.host = asked.host
    if asked.user:
        config._values["user"] = [asked.user]
    if asked.port is not None:
        config._values["port"] = [str(asked.port)]
    system = _Place(system_file, system_file.parent, checked=False)
    config.settle([_Place(user_file, user_file.parent), system])
    return config


def hop(text: str) -> Asked:
    """Return what one word of a ProxyJump asks for. Raises ValueError."""
    found = _HOP.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no host")
    port = int(found["port"]) if found["port"] else None
    return Asked(found["bracketed"] or found["host"], found["user"] or "", port)


def split(text: str, place: _Place) -> list[str]:
    """Return the words of a line as ssh splits it: quotes, a backslash before a quote or a space, comments."""
    words, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _QUOTED.match(text, at)
        if found is None:
            raise place.wrong("a quote is not closed")
        if found[1]:
            break
        word = re.sub(
            r"\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'|\\([\"' \\])",
            lambda part: re.sub(r"\\([\"'\\])", r"\1", part[1] or part[2] or "") if not part[3] else part[3],
            found[2],
        )
        words.append(word)
        at = found.end()
    return words


def listed(name: str, patterns: list[str], folded: bool = False) -> bool:
    """Return whether a list of patterns means `name`: one of them does, and none of those with `!`.

    `folded`: capitals do not count. As in match_hostname() of OpenSSH's match.c; those of `Host` do: `prod` once led to
    the address of a `Host PROD`.
    """
    found = False
    for pattern in patterns:
        wild = re.sub(r"\[", "[[]", pattern.lstrip("!"))  # ssh has only * and ?
        if fnmatch.fnmatchcase(*((name.lower(), wild.lower()) if folded else (name, wild))):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _succeeds(command: str, place: _Place) -> bool:
    shell = os.environ.get("SHELL") or "/bin/sh"
    try:
        done = subprocess.run(
            [shell, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=EXEC,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise place.wrong(f"Match exec takes longer than {EXEC} s: {command[:100]}") from None
    return done.returncode == 0
