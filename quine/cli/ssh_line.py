"""The command line of ssh as `quine rsh` reads it: the options that it follows, refuses and passes over.

Laws
1. An option of ssh is followed; or refused by name, where leaving it out would go another way, to another host or in
   another's name; or passed over, for the reason that stands in the table. An option that ssh does not have is refused.
2. Standard library only, and little of it: programs start many of these in a loop.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FLAGS = "1246AaCfGgKkMNnqsTtVvXxYy"
VALUES = "BbcDEeFIiJLlmOoPpQRSWw"  # letters that take one

FORWARDS = "quine rsh forwards no ports"
WAY = "the inventory says how a host is reached"
# Letters that are refused, and why. All others that `take` does not know are passed over: they say how the connection
# of ssh is made or secured, and rsh goes over the connection that the node of this machine has.
REFUSED = {
    **dict.fromkeys("DLRWw", FORWARDS),
    "N": FORWARDS,
    "f": "quine rsh stays in the foreground; quine run --detach does not",
    "J": f"{WAY}, with jump",
    "O": "there is no master connection to control",
    "Q": "the algorithms are those of the node's connection",
}

NOTHING = ("no", "false", "none", "off", "")  # values that ask for what there is
# Options of ssh_config by lower-case name: why -o with one of them is refused, unless its value is one of NOTHING.
REFUSED_CONFIG = {
    **dict.fromkeys(("dynamicforward", "localforward", "remoteforward", "tunnel", "tunneldevice"), FORWARDS),
    **dict.fromkeys(("hostname", "hostkeyalias", "bindaddress", "bindinterface"), WAY),
    **dict.fromkeys(("proxyjump", "proxycommand", "proxyusefdpass"), WAY),
    **dict.fromkeys(
        ("knownhostscommand", "revokedhostkeys", "stricthostkeychecking"),
        "the node checks host keys; set it in ~/.ssh/config",
    ),
    **dict.fromkeys(("remotecommand", "permitlocalcommand"), "the command is the one after HOST, alone"),
    "forkafterauthentication": REFUSED["f"],
}
# Those that are passed over beside the lists of transport.carrier.ssh.directives.
PASSED_OVER = {
    *("addkeystoagent", "channeltimeout", "forwardagent", "hostbasedacceptedalgorithms", "include"),
    *("localcommand", "permitremoteopen", "pkcs11provider", "protocol", "pubkeyacceptedalgorithms"),
    *("pubkeyacceptedkeytypes", "hostbasedkeytypes", "refuseconnection", "requiredrsasize"),
    *("securitykeyprovider", "usekeychain", "useprivilegedport", "versionaddendum", "warnweakcrypto"),
}


class Line:
    """One command line. A part that was not given is "", [] or False."""

    def __init__(self, words: list[str], environ: Mapping[str, str]) -> None:
        """Raises Misconfigured for an option that is refused, or wrong."""
        self.host = self.user = self.port = ""
        self.command: list[str] = []
        self.terminal = "auto"  # no, auto (if there is no command), yes
        self.no_stdin = self.subsystem = self.quiet = self.verbose = False
        self.config = self.version = self.help = False  # asked for in place of a command
        self.inventory = ""
        self.env: dict[str, str] = {}
        self._environ = environ
        todo = words[::-1]
        self._options(todo)
        if todo:
            self._destination(todo.pop())
            self._options(todo)
        self.command = todo[::-1]

    def _options(self, todo: list[str]) -> None:
        """Take options from the end of `todo`, which is in reverse, and a `--` behind them."""
        while todo and todo[-1].startswith("-") and todo[-1] != "-":
            word = todo.pop()
            if word == "--":
                return
            if word.startswith("--"):
                self._long(word, todo)
                continue
            at = 1
            while at < len(word):
                letter, rest = word[at], word[at + 1 :]
                if letter in VALUES:
                    if not rest and not todo:
                        raise Misconfigured(f"-{letter} needs a value")
                    self._take(letter, rest or todo.pop())
                    break
                if letter not in FLAGS:
                    raise Misconfigured(f"no such option of ssh: -{letter}", "see quine rsh --help")
                self._take(letter, "")
                at += 1

    def _long(self, word: str, todo: list[str]) -> None:
        """Take an option of quine: ssh has none with two dashes."""
        name, given, value = word[2:].partition("=")
        if name == "help":
            self.help = True
        elif name != "inventory":
            raise Misconfigured(f"no such option: {word}", "see quine rsh --help")
        elif value or (todo and not given):
            self.inventory = value or todo.pop()
        else:
            raise Misconfigured("--inventory needs a value: FILE")

    def _take(self, letter: str, value: str) -> None:
        if letter in REFUSED:
            raise Misconfigured(f"-{letter} is not supported: {REFUSED[letter]}")
        if letter == "l":
            self.user = self.user or value  # the first one counts, as for ssh
        elif letter == "p":
            self.port = self.port or value
        elif letter == "t":
            self.terminal = "yes"
        elif letter == "T":
            self.terminal = "no"
        elif letter == "n":
            self.no_stdin = True
        elif letter == "s":
            self.subsystem = True
        elif letter == "q":
            self.quiet = True
        elif letter == "v":
            self.verbose = True
        elif letter == "G":
            self.config = True
        elif letter == "V":
            self.version = True
        elif letter == "o":
            self._configure(value)

    def _destination(self, word: str) -> None:
        """Take [USER@]HOST, or ssh://[USER@]HOST[:PORT]."""
        if word.startswith("ssh://"):
            word = word[6:].rstrip("/")
            name, colon, port = word.rpartition(":")
            if colon and port.isdigit():
                word, self.port = name, self.port or port
        user, _, self.host = word.rpartition("@")
        self.user = self.user or user

    def _configure(self, text: str) -> None:
        """Take -o NAME=VALUE, also with blanks between them, as in ssh_config."""
        name, _, value = text.replace("=", " ", 1).strip().partition(" ")
        key, value = name.lower(), value.strip().strip('"')
        low = value.lower()
        if key == "user":
            self.user = self.user or value
        elif key == "port":
            self.port = self.port or value
        elif key == "requesttty":
            self.terminal = {"yes": "yes", "force": "yes", "no": "no"}.get(low, self.terminal)
        elif key == "setenv":
            self._set(value)
        elif key == "sendenv":
            self._send(value)
        elif key == "stdinnull":
            self.no_stdin = low == "yes"
        elif key == "loglevel":
            self.quiet = self.quiet or low == "quiet"
        elif key == "sessiontype":
            self._session(low)
        elif key in REFUSED_CONFIG:
            if low not in NOTHING and (key, low) != ("stricthostkeychecking", "accept-new"):
                raise Misconfigured(f"-o {name} is not supported: {REFUSED_CONFIG[key]}")
        elif key not in PASSED_OVER:
            from transport.carrier.ssh.directives import APPLIED, WITHOUT_MEANING

            if key not in APPLIED and key not in WITHOUT_MEANING:
                raise Misconfigured(f"-o {name[:40]}: no such option of ssh")

    def _session(self, kind: str) -> None:
        if kind == "none":
            raise Misconfigured(f"-o SessionType=none is not supported: {FORWARDS}")
        self.subsystem = kind == "subsystem"

    def _set(self, text: str) -> None:
        for word in text.split():
            name, given, value = word.partition("=")
            if not given or not name:
                raise Misconfigured(f"-o SetEnv {word}: should be NAME=VALUE")
            self.env[name] = value

    def _send(self, patterns: str) -> None:
        """Pass on variables of ours, as far as they hold no secrets; a pattern is one of fnmatch."""
        from fnmatch import fnmatchcase

        from transport.inherit import scrubbed

        for pattern in patterns.split():
            for name, value in scrubbed(self._environ).items():
                if fnmatchcase(name, pattern):
                    self.env.setdefault(name, value)
