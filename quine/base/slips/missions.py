"""Missions that were probably not meant as such: verbs behind options, commands of other programs, mistyped verbs.

An agent loads this at its start: so nothing that it needs is imported before it is used.
"""

from __future__ import annotations

import os

from quine.base.cli_options import UNBUILT, VERBS, rows
from quine.base.errors import Misconfigured
from quine.base.slips.order import behind
from quine.base.slips.tables import (
    BEFORE_ID,
    BEFORE_OPTION,
    FOREIGN,
    GROUPS,
    HELPED,
    IDIOMS,
    NAMES,
    NEAR_ENGLISH,
    NOT_BUILT,
    OF_LIST,
    OURS,
    PAIRS,
    PROGRAMS,
    PROSE,
    UNLIKE_ENGLISH,
)  # fmt: skip
from quine.base.slips.words import is_one_edit, join

HEX = 6  # letters of an id without a digit
FEW = 2  # words behind a verb of another program
SOME = 4  # of which one is an option, or more of the verb
OF_JOBS = ("attach", "kill", "logs", "wait")  # verbs with ids alone behind them
NO_WORDS = ("fs", "ps", "rsh", "xargs")  # verbs with which no mission begins
SHORT = 3  # letters of a verb that many words are close to


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

    One word before ids of sessions is such a command, too, whichever word it is, and so is a mistyped verb of ours.
    """
    before = words[: len(words) - len(mission)]
    if not mission or before[-1:] == ["--"] or any(map(str.isspace, mission[0])):
        return None
    verb, rest = mission[0], mission[1:]
    ours = _meant(verb, rest)
    if ours is None:
        return None
    hint = f"did you mean quine {ours}? for a mission: " if ours else "for a mission: "
    what = "not built yet: quine" if verb in NOT_BUILT else "no such verb:"
    return Misconfigured(f"{what} {verb}", hint + join(["quine", *before, "--", *mission]))


def _meant(verb: str, rest: list[str]) -> str | None:
    """Return the command of quine that is meant, "" if quine has no such command; None if the words are a mission."""
    if _is_before_id(verb, rest):
        return OURS.get(verb) or BEFORE_ID.get(verb, "")
    if verb == "help" and len(rest) == 1 and rest[0] not in HELPED:
        return f"{OURS[rest[0]].split()[0]} --help" if rest[0] in OURS else OURS[verb]
    if len(rest) == 1 and rest[0] in PAIRS.get(verb, ()):
        if verb == "list":
            return OF_LIST.get(rest[0], OURS[verb])
        return OURS.get(verb, "").replace("SHELL", rest[0])
    if _is_foreign(verb, rest):
        return OURS.get(verb, "")
    return _mistyped(verb) if len(rest) < FEW else None


def _is_before_id(verb: str, rest: list[str]) -> bool:
    """Return whether the words are a verb and the id of what it is about."""
    if not rest:
        return verb in NOT_BUILT
    if all(map(is_begun_id, rest)):
        return True
    if verb not in NOT_BUILT:
        return False
    return rest[0].startswith("-") or is_begun_id(rest[0]) or (len(rest) <= FEW and _is_part_of_id(rest[0]))


def _is_foreign(verb: str, rest: list[str]) -> bool:
    """Return whether the words are a command of another program."""
    if verb in FOREIGN and len(rest) <= FEW and _are_arguments(verb, rest):
        return True
    if not rest or len(rest) > SOME or PROSE.intersection(rest[1:]):
        return False
    if rest[0].startswith("-") and rest[0] not in ("-", "--"):
        return verb in FOREIGN or (verb in BEFORE_OPTION and not rest[0].startswith("--"))
    return rest[0] in IDIOMS.get(verb, ()) or (verb in UNLIKE_ENGLISH and rest[0] not in PROSE)


def _mistyped(verb: str) -> str | None:
    """Return the verb of ours that a word was meant to be; None for any other word."""
    if verb.isupper() and verb.lower() in VERBS:
        return verb.lower()
    if verb in NEAR_ENGLISH or verb in FOREIGN:
        return None
    for ours in VERBS:
        if is_one_edit(verb, ours) and (len(ours) > SHORT or set(verb) == set(ours)):  # swapped, or doubled
            return ours
    swapped = (
        one for one in FOREIGN if len(one) > SHORT and sorted(one) == sorted(verb) and is_one_edit(verb, one)
    )
    return next((OURS.get(one, "") for one in swapped), None)


def as_mission(words: list[str]) -> str:
    """Return the hint that the words of a verb that has failed may be a mission, as `run the tests`; else ""."""
    verb, rest = "".join(words[:1]), words[1:]
    if (
        verb not in VERBS
        or verb in NO_WORDS
        or not rest
        or not all(word.strip(".,:;?!").isalpha() for word in rest)
    ):
        return ""
    no_id = verb in OF_JOBS and bool(set(rest[0]) - set("0123456789abcdef"))
    if not no_id and not (len(rest) >= FEW and (verb == "top" or _is_sentence(rest))):
        return ""
    return "for a mission: " + join(["quine", "--", *words])


def is_begun_id(word: str) -> bool:
    """Return whether a word is the id of a session, or begins one with at least the eight digits before its dash.

    They begin with the time, which is 01 or 02 in this century. A letter is among them: a date in digits has none.
    """
    whole = "01234567-0123-0123-0123-0123456789ab"
    if not 8 <= len(word) <= len(whole) or word[:2] not in ("01", "02") or not set(word[:8]) & set("abcdef"):
        return False
    return all(one in "0123456789abcdef" if at != "-" else one == "-" for one, at in zip(word, whole))


def _is_part_of_id(word: str) -> bool:
    """Return whether a word looks like a part of an id, and not like a date."""
    letters = set(word)
    return (
        len(word) >= 8
        and word[0] != "-"
        and letters <= set("0123456789abcdef-")
        and bool(letters & set("abcdef"))
    )


def command_for_items(mission: list[str]) -> Misconfigured | None:
    """Return the error if a mission for the items of `xargs` is a command, which says how to say either."""
    if not accidental_command(mission):
        return None
    from shlex import quote

    text = " ".join(mission)
    return Misconfigured(
        f"{text.split()[0]} is a command, and a mission for agents stands here",
        f"for a command: quine xargs [OPTIONS] -- {text}; for a mission: --mission {quote(text)}",
    )


def accidental_command(mission: list[str]) -> bool:
    """Return whether a mission for the items of `xargs` is a command: a program with options, names, replacements.

    Behind a program whose name is no verb in English any words are those of a command, unless a sentence has them.
    """
    words = " ".join(mission).split()
    program, rest = "".join(words[:1]), words[1:]
    if program in NAMES and ((rest[:1] and rest[0].startswith("-")) or not _is_sentence(rest)):
        return True
    runs = program in PROGRAMS or ("/" in program and os.access(program, os.X_OK))
    return runs and all("{" in word or _is_no_prose(word) for word in rest)


def _is_sentence(words: list[str]) -> bool:
    return bool(PROSE.intersection(words)) or any(word.endswith((":", ",", "?")) for word in words)


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
