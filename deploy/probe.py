"""The one command that a session channel runs, and the answers to it: pure text, no I/O.

    origin                                        host
    exec /bin/sh -c '...'                  ->
                                           <-     MARKER have            then the dial's own bytes
                                           or     MARKER other VERSION                    of an admin's binary: the end
                                           or     MARKER nothing                          to one that asks: the end
                                           or     MARKER need|dead|shut|noexec SYSTEM MACHINE VERSION FREE KEPT PYTHON
                                       (before:   MARKER hung PATH...)
                                       (a look:   MARKER shell SECONDS SHELL, MARKER python VERSION PATH..., have ...)
    length, program, the bytes behind KEPT ->
                                           <-     MARKER fail WORD TEXT | have

Laws
1. Any login shell passes it on as it is: within its single quotes there is no single quote, no backslash, no
   exclamation mark and no newline. So sh, csh, tcsh and fish are one case.
2. A host that has the binary answers and starts the dial at once: one round trip, and no process but the dial.
3. Bytes before the marker are a banner of the login shell: they are skipped, never trusted.
4. Nothing is started from a cache that another user may have made: an installation is the user's own (-O). The
   installer judges the cache itself, and the way to it. A way that is not below the home, or has a link in it, is
   judged here, too, each time: it leads through directories of others. Scripts that start, make or remove anything
   else in a cache judge all of it first, by `own`.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass

from deploy.build import OLDEST_PYTHON, Binary
from deploy.there import installer
from transport import this_build
from transport.text import harmless
from transport.wire.numbers import digits

BANNER_LIMIT = 1 << 20  # bytes without a marker, after which none will come any more
LINE_LIMIT = 4096
MOST_ANSWERS = 200  # to one probe: a line for its shell, and for each Python that it finds or that hangs
CACHE = "~/.cache/quine"
BROUGHT = "python-"  # begins the name of an interpreter in the cache, see interpreter.py
BUILD_SHOWN = 12  # digits of the hash of a build in the answer to --version
ADMIN_SECONDS = 20  # in which an installation of an admin has to tell its build
PYTHON_SECONDS = 6  # for one Python to start; one in the PATH may hang, as behind a file server that is gone
NOTHING = "nothing"  # the answer to one that asks, of a host that has nothing of ours
SILENT = "silent"  # in place of a version that did not come in that time
PLAIN = "it is not executable"  # in place of a version
# The time of a host, and the version of its Python: 100 times the major one.
LATEST, VERSIONS = 10**12, 999_999
CLOCK = 2  # seconds of a difference between two clocks that are not worth a word

# Only the age is checked, which takes no process: a file that was damaged later, by a full disk or a person, is younger
# than the launcher, and the file had its hash checked before the launcher was written.
_HAVE = (
    'd="{base}/{name}"; '
    'if [ -O "$d" ] && [ -x "$d/quine" ] && [ -f "$d/{file}" ] && [ "$d/quine" -nt "$d/{file}" ] && {safe} "$d"; then '
    "h=dead; if {works}; then {found}; fi; fi; "
)
# Judges a path as `judge_way` of the installer does: each name on the way, and the way of each link. Of a group that
# may write only the name is known here, not its members. $1 to $6: path, links, and mode, links, owner, group of ls.
_JUDGE = (
    'v() {{ z="$3"; }}; '
    'j() {{ [ "${{2:-0}}" -lt 40 ] || return 1; x="$(LC_ALL=C ls -ldn "$1" 2>/dev/null)" || return 1; '
    'set -f; set -- "$1" "${{2:-0}}" $x; set +f; '
    'case "$5" in 0|"$z"|"$(id -u)") ;; *) return 1;; esac; '
    'case "$3" in l*) y="${{x##* -> }}"; case "$y" in /*) ;; *) y="${{1%/*}}/$y";; esac; '
    'j "$y" $(($2 + 1)) || return 1;; ?????????[tT]*) ;; ????????w*) return 1;; '
    '?????w*) [ "$6" = 0 ] || {{ [ "$6" = "$(id -g)" ] && [ "$(id -gn)" = "$(id -un)" ]; }} || return 1;; esac; '
    'case "$1" in {top}) return 0;; esac; y="${{1%/*}}"; j "${{y:-/}}" "$2"; }}; '
)
_ROOT = "v $(LC_ALL=C ls -ldn /); "
# Below the home a link is looked for first, which takes no process. Above the home nothing is judged.
_JUDGE_LINKS = (
    "r() {{ " + _ROOT + 'w="$(cd "$HOME" && pwd -P)" && j "$w${{1#"$HOME"}}"; }}; '
    'l() {{ y="$1"; while :; do case "$y" in "$HOME"|/|"") return 0;; esac; [ -h "$y" ] && break; '
    'y="${{y%/*}}"; done; r "$1"; }}; '
)
# Judges a directory in which names are made, or whose programs are started. Others may make names in a sticky one.
_OWN_FOLDER = (
    'own() ( [ -O "$1" ] && {whole} "$1" && case "$(LC_ALL=C ls -ldnL "$1")" in '
    "?????w???[tT]*|????????w[tT]*) exit 1;; esac ); "
)
_LIMITED = 't="timeout -s KILL {seconds}"; $t true 2>/dev/null || t=; '  # not every system has a `timeout`
# A dial starts it, and so sees whether it does; where nothing is started, its Python may be gone.
_STARTS = '$t "$d/quine" --version </dev/null >/dev/null 2>&1'
_FOUND = {
    "dial": "echo {marker} have; {start}",
    "ask": "echo {marker} have; {start}",
    "deploy": "echo {marker} have; exit 0",
    "check": "h=have",
    "look": "h=have",
}
# An installation of an admin is asked for its build: any program may stand there, one that hangs or never stops
# talking, too. Its directory comes first on the PATH, so that jobs call the same build, unless it would change their
# python.
_ADMIN = (
    'd="{admin}"; for c in "$d/bin/quine" "$d/quine"; do [ -d "$d" ] && [ -f "$c" ] && d="$c"; done; '
    + _LIMITED
    + 'x="there is no program by that name"; [ -f "$d" ] && x="{mode}"; [ -f "$d" ] && [ -x "$d" ] && '
    'x="$({{ $t "$d" --version </dev/null; [ $? -eq 137 ] && {{ echo; echo {silent}; }}; }} 2>&1 '
    '| head -c 4096 | tail -n 1)"; '
    'case "$x" in *"(build {build})"*) {found};; *) set -f; echo {marker} other $x; exit 0;; esac; '
)
# Whoever started a job here has left one of these: a build, the record of a job, a tape, the socket of a node.
_TRACES = (
    'r="$XDG_RUNTIME_DIR"; [ -d "$r" ] || r=/tmp; h=nothing; command -v quine >/dev/null && h=need; '
    'for y in "{base}" "${{XDG_STATE_HOME:-$HOME/.local/state}}/quine" "$HOME/.local/state/quine" "$HOME/.quine" '
    '"$r/quine-$(id -u)"; do [ -e "$y" ] && h=need; done; '
    "[ $h = need ] || {{ echo {marker} {nothing}; exit 0; }}; "
)
_OWN = 'PATH="$d:$PATH"; export PATH; exec "$d/quine" node --dial'
_START = '[ -x "${{d%/*}}/python3" ] || PATH="${{d%/*}}:$PATH"; export PATH; exec "$d" node --dial'
_SHELL = 'echo {marker} shell $(date +%s) "$SHELL"; '  # its start files are done
_SHOWN = 'echo {marker} python $n "$y"; '
_HUNG = 'echo {marker} hung "$y"; '
_DIAL = "if [ $h = have ]; then {start}; fi; "
_PLACE = (
    'b="{base}"; until [ -d "$b" ]; do case "$b" in */*) b="${{b%/*}}";; *) b=/;; esac; [ -n "$b" ] || b=/; done; '
    '[ $h = have ] || [ -w "$b" ] || h=shut; '
    'k=0; y="{base}/.part-{name}"; [ -f "$y" ] && k="$({{ wc -c < "$y"; }} 2>/dev/null)" || k=0; '
)
# Each candidate is started, because a name on the PATH may be a stub that only says where to get Python; but not a
# second name of the best one, or of one that hangs. A file system that has no size (/proc) keeps no files, whoever may
# write there. On one mounted noexec (8 of statvfs) the build could not start.
_LOOK = (
    '[ -f "$y" ] || continue; [ "$v" -ge {oldest} ] && [ "$y" -ef "$p" ] && continue; '
    '[ -n "$g" ] && [ "$y" -ef "$g" ] && continue; '
    'x="$($t "$y" -I -S -c "import sys, posix, zlib; s = posix.statvfs(sys.argv[1]); '
    "print(sys.version_info[0] * 100 + sys.version_info[1], "
    "-1 if not s.f_blocks else -2 if s.f_flag & 8 else s.f_bavail * s.f_frsize)"
    '" "$b" </dev/null 2>/dev/null)" || {{ [ $? -ne 137 ] || {{ g="$y"; {hung}}}; continue; }}; '
    'n="${{x%% *}}"; {shown}[ "$n" -gt "$v" ] 2>/dev/null || continue; '
    'v="$n"; f="${{x#* }}"; p="$y"; '
)
_PYTHON = (
    _LIMITED.replace("{seconds}", "{patience}")
    + 'g=; v=0; f=0; p=; for c in {names}; do command -v "$c" >/dev/null || continue; y="$(command -v "$c")"; '
    + _LOOK
    + 'done; [ "$v" -ge {oldest} ] || {{ o="{base}"; own "$o" || o=/dev/null; for y in {elsewhere}; do '
    + _LOOK
    + "done; }}; "
    '[ "$h" = have ] || case "$f" in -1) h=shut;; -2) h=noexec;; esac; case "$f" in -*) f=0;; esac; '
)
_FACTS = 'echo {marker} $h $(uname -sm) $v $f $k "$p"; '
_RECEIVE = (
    '[ "$v" -ge {oldest} ] && '
    'exec "$p" -I -S -c "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())))"; exit 69'
)
_NAMES = " ".join(["python3", *(f"python3.{minor}" for minor in range(19, OLDEST_PYTHON[1] - 1, -1))])
_ELSEWHERE = " ".join(
    [
        '"$HOME"/.local/bin/python3*',
        '"$HOME"/.local/share/uv/python/*/bin/python3',
        '"$HOME"/.pyenv/versions/*/bin/python3',
        '"$HOME"/*conda*/bin/python3',
        '"$HOME"/*forge*/bin/python3',
        "/opt/*/bin/python3",
        "/usr/local/bin/python3*",
    ]
)


@dataclass(frozen=True)
class Place:
    """Where the binary is kept on a host, and which Python starts it there, as its table in the inventory says.

    `cache`: a directory, which may begin with ~/. `python`: a program or path, "" for the newest that is found.
    `modules`: of the environment modules of a cluster, loaded before its Python is looked for and started.
    `binary`: of an admin, an executable or the directory of an installation, in place of one in `cache`.
    """

    cache: str = CACHE
    python: str = ""
    modules: tuple[str, ...] = ()
    binary: str = ""

    @property
    def setup(self) -> str:
        """Lines of the shell before each start of Python."""
        if not self.modules:
            return ""
        load = " ".join(self.modules)
        return f"{{ . /etc/profile; module load {load}; }} >/dev/null 2>&1\n"

    def name(self, binary: Binary) -> str:
        """Return the name of the installation: another wish, another one."""
        if not self.python and not self.modules:
            return binary.sha256
        wish = repr((binary.sha256, self.python, self.modules))
        return hashlib.sha256(wish.encode()).hexdigest()


@dataclass(frozen=True)
class Facts:
    """Facts that a host reports. `python` is the path of the best one, "" for none."""

    have: bool  # this very binary is there
    shut: bool  # and it cannot be put there: the home is missing, or keeps no files of ours
    system: str
    machine: str
    version: tuple[int, int]  # (0, 0) for none
    free: int  # bytes
    kept: int  # bytes of the binary that are there already
    python: str
    dead: bool = False  # this very binary is there, and does not start or is not trusted
    noexec: bool = False  # it cannot be put there: no program starts on that file system
    hung: str = ""  # a Python that was started and does not answer

    @property
    def text(self) -> str:
        build = "this build is there" if self.have else "this build is not there"
        build = "this build is there and does not start" if self.dead else build
        room = f"{self.free >> 20} MB free, " if self.python else ""  # Python looks
        return f"{self.system} {self.machine}, {room}{build}"


def command(binary: Binary, place: Place, marker: str, mode: str = "dial", *, trust: bool = True) -> str:
    """Return the command for the channel. `trust` False installs anew whatever is there.

    Modes: "dial" installs if need be and starts the dial, "deploy" only installs, "check" only looks. "look" is
    "dial" with an answer for each thing that is found on the way. "ask" is "dial", but a host that has nothing of ours
    answers so.
    """
    asks = mode in ("check", "deploy")
    works = (_STARTS if asks else "true") if trust else "false"
    values = {
        **_values(place, marker, place.name(binary)),
        "file": installer.FILE,
        "works": works,
        "admin": in_shell(place.binary),
        "build": this_build.build_hash()[:BUILD_SHOWN],
        "seconds": str(ADMIN_SECONDS),
        "silent": SILENT,
        "mode": PLAIN,
        "nothing": NOTHING,
        "shown": _SHOWN.format(marker=marker) if mode == "look" else "",
        "hung": _HUNG.format(marker=marker),
    }
    home = '[ -d "$HOME" ] || h=shut; ' if place.cache.startswith("~/") else ""
    start = _OWN
    have = (_LIMITED if asks and trust else "") + _HAVE
    setup = "{setup}"
    if place.binary:
        start, have, setup = _START, setup + _ADMIN, ""
    have = "h=need; {judge}" + have.replace("{found}", _FOUND[mode])
    if mode == "ask" and not place.binary:  # nothing is ever brought beside that of an admin
        have += _TRACES
    script = (_SHELL if mode == "look" else "") + have + home + setup + _PLACE + _PYTHON + _FACTS
    ends = {"check": "exit 0", "look": _DIAL + _RECEIVE}
    script = (script + ends.get(mode, _RECEIVE)).replace("{start}", start).format(**values)
    return for_any_shell(script)


def looking(place: Place, marker: str, name: str) -> str:
    """Return the script that looks for a place and a Python. It ends with the answer `have` if one is new enough.

    It sets b (the lowest directory of the cache that exists), h (`shut` if that cannot be written), k (the bytes that
    came of `name`).
    """
    found = '[ "$v" -ge {oldest} ] && {{ echo {marker} have; exit 0; }}; '
    return ("h=need; {judge}{setup}" + _PLACE + _PYTHON + found).format(**_values(place, marker, name))


def _values(place: Place, marker: str, name: str) -> dict[str, str]:
    base, python = in_shell(place.cache), f'"{in_shell(place.python)}"' if place.python else ""
    return {
        "base": base,
        "judge": judge(place),
        "safe": "l" if place.cache.startswith("~/") else "j",
        "name": name,
        "marker": marker,
        "oldest": str(_number(OLDEST_PYTHON)),
        "names": python or _NAMES,
        "elsewhere": python or f'"$o"/{BROUGHT}*/*/bin/python3 {_ELSEWHERE}',
        "setup": place.setup.replace("\n", "; "),
        "shown": "",
        "hung": "",
        "patience": str(PYTHON_SECONDS),
    }


def judge(place: Place) -> str:
    """Return the functions that judge a path of a cache. `own`: no other user can change it, or the way to it."""
    if place.cache.startswith("~/"):
        links = _JUDGE_LINKS.format() + _OWN_FOLDER.format(whole="r")
        return _JUDGE.format(top='/|"$HOME"|"$w"') + links
    return _JUDGE.format(top="/") + _ROOT + _OWN_FOLDER.format(whole="j")


def for_any_shell(script: str) -> str:
    """Return the command that has any login shell run this script of /bin/sh: law 1."""
    assert not set("'\\!\n") & set(script)
    return f"exec /bin/sh -c '{script}'"


def in_shell(path: str) -> str:
    """Return a path of the inventory for double quotes; its characters were checked there."""
    return f"$HOME/{path[2:]}" if path.startswith("~/") else path


def _number(version: tuple[int, int]) -> int:
    return version[0] * 100 + version[1]


class Answers:
    """Finds the marked lines in the bytes of a host, whatever stands around them."""

    def __init__(self, marker: str, by_hand: str = "", program: bool = False) -> None:
        """`by_hand`: the command by which a person tries the way there, for hints.

        `program`: the way there is a command of the user's, whose status may be its own or that of the shell there.
        """
        self.marker = marker
        self.by_hand = by_hand
        self.program = program
        self.heard = False  # one of them at least
        self._sought = marker.encode() + b" "
        self._data = b""
        self.banner = b""

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> str | None:
        """Return the next answer without its marker, None until it is whole. Raises ValueError if it will not come."""
        found = self._data.find(self._sought)
        if found < 0:
            if len(self._data) > BANNER_LIMIT:
                raise ValueError(f"more than {BANNER_LIMIT >> 20} MB before the first answer")
            return None
        start = found + len(self._sought)
        end = self._data.find(b"\n", start)
        if end < 0:
            if len(self._data) - start > LINE_LIMIT:
                raise ValueError("an answer without an end")
            return None
        self.banner = (self.banner + self._data[:found])[-LINE_LIMIT:]
        line, self._data = self._data[start:end], self._data[end + 1 :]
        self.heard = True
        return plain(line).strip()

    def rest(self) -> bytes:
        """Return the bytes after the last answer: the first bytes of the dial, or the words of a shell that failed."""
        rest, self._data = self._data, b""
        return rest


def plain(data: bytes) -> str:
    """Return a host's output as text fit for a terminal: no escape sequence, no other control character."""
    return harmless(data.decode(errors="replace"), keep="\n", instead=" ")


def of_shell(text: str, banner: bytes) -> str:
    """Return for people what a look says of the login shell: its name, its clock if it is wrong, its banner."""
    seconds, _, shell = text.partition(" ")
    try:
        ahead = digits(seconds, LATEST) - round(time.time())
    except ValueError:
        ahead, shell = 0, text  # it may have no `date`
    said = " ".join(plain(banner).split())
    parts = [shell or "a shell without a name"]
    if abs(ahead) > CLOCK:
        parts.append(f"its clock is {abs(ahead)} s {'fast' if ahead > 0 else 'slow'}")
    if said:
        parts.append(f"prints before the command: {said[:80]}")
    return "; ".join(parts)


def of_python(text: str) -> str:
    """Return for people what a look says of one Python."""
    number, _, path = text.partition(" ")
    try:
        version = ".".join(map(str, divmod(digits(number, VERSIONS), 100)))
    except ValueError:
        version = "?"
    return f"Python {version} at {path}"


# An answer is shown: it has words of letters and digits, numbers of a size, a path without control characters.
WORD, LONGEST_PATH = 64, 4096  # characters
ANSWER = (
    rf"(need|dead|shut|noexec|have) ([\w.-]{{1,{WORD}}}) ([\w.-]{{1,{WORD}}}) "
    rf"(\d{{1,6}}) (\d{{1,18}}) (\d{{1,18}}) ?([^\x00-\x1f\x7f-\x9f]{{0,{LONGEST_PATH}}})"
)


def facts(answer: str) -> Facts:
    """Parse a line `need ...`, `dead ...`, `shut ...`, `noexec ...` or `have ...` of a check; else ValueError."""
    found = re.fullmatch(ANSWER, answer, re.ASCII)
    if found is None:
        raise ValueError(f"not an answer: {answer!r}")
    state, system, machine, *numbers, python = found.groups()
    version, free, kept = map(int, numbers)
    have, shut, dead, noexec = (state == each for each in ("have", "shut", "dead", "noexec"))
    return Facts(have, shut, system, machine, divmod(version, 100), free, kept, python, dead, noexec)
