"""Additions to messages: the command that they are about, and the command that was probably meant.

Loaded after an error, and by an agent at its start: so the modules that it needs are imported where they are used.
"""

from __future__ import annotations

import os

from quine.base.cli_options import UNBUILT, VERBS, rows
from quine.base.errors import Misconfigured
from quine.base.slips.order import behind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import RunOptions
    from transport.status import Status

SHOWN = 200  # characters of a command in a message
HEX = 6  # letters of an id without a digit
FOR_A_SHELL = frozenset(" |&;<>()$`*?\n")
# Verbs of docker, git, tmux, kubectl, ssh, llm and other agents, as far as they are no tasks in English. Whoever types
# one of them alone, or before an id, does not mean a mission, and would pay for an agent with a shell.
_FOREIGN = """
    abort add agents api-resources app-server apply attach-session auth blame branch cancel checkout clone
    cluster-info commit config continue cordon cost cp create delete detach drain events exec expose fetch get help
    history images info init inspect install job jobs keys kill-server kill-session list list-sessions load log
    login logout ls lsk mcp models mv network new new-session pause plugin plugins port prune pull push rebase
    remote rename reset restart restore resume rm rollout save scp send-keys serve session sessions set setup-token
    split-window ssh start stash stats status stop switch tag templates terminate tree uninstall update upgrade
    version volume
"""
FOREIGN = frozenset(_FOREIGN.split())
FEW = 2  # words behind such a verb
# Those of them that take another one, as `session list`, and are no verbs in English.
_GROUPS = "config keys mcp models network plugin plugins session sessions templates volume"
GROUPS = frozenset(_GROUPS.split())
# Programs that people put before `{}`; not the PATH, in which `summarize` may be one.
_PROGRAMS = """
    awk base64 bash bunzip2 bzip2 cat chmod chown cksum convert cp curl cut df diff du echo egrep false ffmpeg ffprobe
    file find gcc git grep gunzip gzip head identify jq kill ln ls magick make md5sum mkdir mv node pandoc pdftotext
    perl printf python python3 rg rm rsync ruby scp sed sh sha1sum sha256sum sha512sum sleep sort sox split ssh stat tac
    tail tar tee touch tr true uniq unxz unzip unzstd wc wget xz yq zcat zip zstd
"""
PROGRAMS = frozenset(_PROGRAMS.split())
# Commands of quine that are meant by some of them.
OURS = {
    "abort": "kill ID",
    "agents": "ps",
    "attach-session": "attach ID",
    "cancel": "kill ID",
    "config": "doctor",
    "cost": "tape cost",
    "exec": "run -- CMD",
    "info": "doctor",
    "job": "ps",
    "jobs": "ps",
    "kill-session": "kill ID",
    "list": "ps",
    "list-sessions": "ps",
    "log": "logs ID",
    "ls": "ps",
    "models": "doctor --guest",
    "rm": "kill ID",
    "session": "tape ls",
    "sessions": "tape ls",
    "history": "tape ls",
    "status": "ps",
    "stop": "kill ID",
    "terminate": "kill ID",
    "tree": "tape tree; quine tape cost",
}
# Words that begin missions, too: before an id they are verbs, and nothing else is meant.
BEFORE_ID = {"continue": "attach ID", "follow": "attach ID", "result": "tape show ID", "show": "tape show ID"}


def join(words: list[str]) -> str:
    """Return a command line of these words."""
    import shlex

    return shlex.join(words)


def complete(status: Status, command: list[str], options: RunOptions) -> None:
    """Name the command of a job that was not run or is lost, for it may be one of many; add the cure.

    The command is empty for one of quine itself, which is told by its mission.
    """
    if status.state == "unreachable" and (other := another(status, options)):
        status.hint = f"{status.hint}; {other}" if status.hint else other
    if not command:
        return
    if status.code == 127 and not status.hint:
        status.hint = not_found(command, options)
    if status.detail and status.host and status.state in ("unreachable", "lost"):
        from quine.base.text import plain

        shown = plain(join(command), newlines=False)  # one line, whatever the command holds
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        status.detail += f"; {'not run' if status.state == 'unreachable' else 'lost'}: {shown}"


def another(status: Status, options: RunOptions) -> str:
    """Return the cure for a host that was chosen and cannot be reached; "" if WHERE means no other one."""
    if not options.on or not status.host or options.retry:
        return ""
    from quine.base.allowed_hosts import known
    from transport.errors import Refused

    try:
        others = [host for host in known(options).matching(options.on) if host.name != status.host]
    except (Refused, ModuleNotFoundError):  # the latter on a host whose Python reads no TOML
        return ""
    return f"--retry 1 tries another of {options.on}" if others else ""


def not_found(command: list[str], options: RunOptions) -> str:
    """Return the cure for a command that was not found; "" if there is none to suggest."""
    if FOR_A_SHELL & set(command[0]):
        from shlex import quote

        return f"no shell reads the command; to use one: sh -c {quote(' '.join(command))}"
    if not options.on and command[0] in _hosts(options):
        words = command[1:]
        # Options of quine may follow the host, as in: quine run h1 --cwd /tmp -- ls
        if "--" not in words or not words[0].startswith("-"):
            words = ["--", *words]
        shown = join(["quine", "run", "--on", command[0], *words])
        return f"to run it on that host: {shown}{' CMD' if words[-1] == '--' else ''}"
    return ""


def near_verb(mission: list[str]) -> str:
    """Return a hint, to stand before another, if the mission is one word and one edit away from a verb; else ""."""
    near = [verb for verb in VERBS if is_one_edit(mission[0], verb)] if len(mission) == 1 else []
    return f"did you mean quine {near[0]}? for a mission: " if near else ""


def mistake(words: list[str], mission: list[str]) -> Misconfigured | None:
    """Return the error if words were probably not meant as a mission, which ends them."""
    if not mission:
        return None
    if wrong := misplaced(words, mission) or accident(words, mission):
        return wrong
    wrong = behind(rows("agent"), words, mission)
    return (slip(words, mission) if wrong or "--" in mission[1:] else None) or wrong


def misplaced(words: list[str], rest: list[str]) -> Misconfigured | None:
    """Return the error if options are before a verb, else None; `rest` is the part of `words` after the options."""
    before = words[: len(words) - len(rest)]
    if not rest or rest[0] not in (*VERBS, *UNBUILT) or before[-1:] == ["--"]:
        return None
    verb, mission = join(["quine", rest[0], *before, *rest[1:]]), join(["quine", *before, "--", *rest])
    return Misconfigured(
        f"options before {rest[0]}, which is a verb", f"the verb: {verb}; the mission: {mission}"
    )


def slip(words: list[str], mission: list[str]) -> Misconfigured | None:
    """Return the error if words read like a command of a verb, `rnu --on h1 -- true`; `mission` ends them."""
    before = words[: len(words) - len(mission)]
    hint = near_verb(mission[:1])
    if not hint or before[-1:] == ["--"]:
        return None
    return Misconfigured(f"no such verb: {mission[0]}", hint + join(["quine", *before, "--", *mission]))


def accident(words: list[str], mission: list[str]) -> Misconfigured | None:
    """Return the error if the words are a command of another program, as `rm ID` or `login`; `mission` ends them.

    One word before ids of sessions is such a command, too, whichever word it is.
    """
    before = words[: len(words) - len(mission)]
    if not mission or before[-1:] == ["--"]:
        return None
    verb, rest = mission[0], mission[1:]
    named = not any(map(str.isspace, verb)) and bool(rest) and all(map(is_begun_id, rest))
    if not named and (verb not in FOREIGN or len(rest) > FEW or not _are_arguments(verb, rest)):
        return None
    ours = OURS.get(verb) or (BEFORE_ID.get(verb) if named else None)
    hint = f"did you mean quine {ours}? for a mission: " if ours else "for a mission: "
    return Misconfigured(f"no such verb: {verb}", hint + join(["quine", *before, "--", *mission]))


def is_begun_id(word: str) -> bool:
    """Return whether a word is the id of a session, or begins one with at least the eight digits before its dash.

    They begin with the time, which is 01 or 02 in this century. A letter is among them: a date in digits has none.
    """
    whole = "01234567-0123-0123-0123-0123456789ab"
    if not 8 <= len(word) <= len(whole) or word[:2] not in ("01", "02") or not set(word[:8]) & set("abcdef"):
        return False
    return all(one in "0123456789abcdef" if at != "-" else one == "-" for one, at in zip(word, whole))


def command_for_items(mission: list[str]) -> Misconfigured | None:
    """Return the error if a mission for the items of `xargs` is a command, which says how to say either."""
    from shlex import quote

    text = " ".join(mission)
    if not accidental_command(mission):
        return None
    return Misconfigured(
        f"{text.split()[0]} is a command, and a mission for agents stands here",
        f"for a command: quine xargs [OPTIONS] -- {text}; for a mission: --mission {quote(text)}",
    )


def accidental_command(mission: list[str]) -> bool:
    """Return whether a mission for the items of `xargs` is a command: a program with options, names, replacements."""
    words = " ".join(mission).split()
    program = words[:1]
    runs = program and (program[0] in PROGRAMS or ("/" in program[0] and os.access(program[0], os.X_OK)))
    return bool(runs) and all("{" in word or _is_no_prose(word) for word in words[1:])


def _are_arguments(verb: str, rest: list[str]) -> bool:
    """Return whether words behind a verb of another program are no prose: `exec ls`, `session list`, `rm ./x`."""
    if verb == "exec":
        rest = [word for word in rest if word not in PROGRAMS]
    elif verb in GROUPS and rest[:1] and rest[0] in (*FOREIGN, "show"):
        rest = rest[1:]
    return all(map(_is_no_prose, rest))


def _is_no_prose(word: str) -> bool:
    """Return whether a word is an option, an id, a path or the name of something that is there."""
    if word.startswith(("-", ".", "~")) or "/" in word or any(map(str.isdigit, word)):
        return True
    return (len(word) >= HEX and not set(word) - set("abcdef")) or os.path.lexists(word)


def is_one_edit(one: str, other: str) -> bool:
    """Return True if one character is added, missing or replaced, or two neighbours are swapped."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])


def _hosts(options: RunOptions) -> set[str]:
    from deploy.inventory import ConfigError
    from quine.base.allowed_hosts import known

    try:
        return set(known(options).hosts)
    except (ConfigError, ModuleNotFoundError):  # the latter on a host whose Python reads no TOML
        return set()
