"""The meaning of `--files` and `--returns`: paths, and the names that they get on the other side.

Laws
1. A relative path keeps its name, as with rsync -R. An absolute path, or one that leads out with `..`, gets its last
   part as its name. `A/./B` is named B, and `A:B` is A under the name B. If the whole text exists as a path, it means
   that path: colons, stars and a `~` at its beginning included. The part of an item is `literal`: it stands for itself
   in the text and in the pattern, and for no file whose name is the quoted form.
2. A pattern is the shell's: `*` and `?` match no slash and no leading dot, `**` matches any directories. It is expanded
   where the files are, and returned names are checked against it here. A file at one of `places`, however it is
   spelled (`.GIT`), comes back only by a pattern that names the place (`.git/*`, not `*`).
3. Files that the caller writes itself, its log or the file that its stdout goes to, are neither sent nor replaced.
4. A link that is named is followed. One that only matches a pattern of --files leads nowhere outside the directory in
   which the pattern begins: the files of a tree do not choose what is sent. Names are judged here, and descriptors in
   `files_sender`.
"""

from __future__ import annotations

import os
import stat

from quine.base import dirs
from quine.base.errors import Misconfigured
from quine.files import paths
from quine.files.exclusions import ASIDE, Places, naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

MAGIC = "*?["
MEANING = MAGIC + ":"  # characters that do not stand for themselves


def sources(
    words: list[str], folder: str, bounds: dict[bytes, tuple[bytes, ...]] | None = None
) -> list[tuple[bytes, bytes]]:
    """Return (absolute path, remote name) of everything that --files names, each once. Raises Misconfigured.

    `bounds` gets, by the name of each match of a pattern, the directories of which it is in one.
    """
    found: dict[bytes, bytes] = {}
    for word in words:
        try:
            pairs, roots = _meant(word, folder)
        except OSError as error:  # a link that was exchanged while it was followed
            raise Misconfigured(f"--files {text_of(word)}: {error.filename}: {error.strerror}") from None
        for path, name in pairs:
            if found.setdefault(name, path) != path:
                raise Misconfigured(f"--files: two files for the name {os.fsdecode(name)!r}")
        if bounds is not None and roots:
            bounds.update((name, roots) for _, name in pairs)
    kept: list[tuple[bytes, bytes]] = []
    for name, top in _topped(set(found)):
        if name == top:
            kept.append((found[name], name))
        elif found[name] != os.path.join(found[top], name[len(top) :].lstrip(b"/")):
            raise Misconfigured(f"--files: two files for the name {os.fsdecode(name)!r}")
    return kept


def _topped(names: set[bytes]) -> list[tuple[bytes, bytes]]:
    """Pair each name with the outermost of `names` that is or contains it; b"" is the whole directory."""
    found: list[tuple[bytes, bytes]] = []
    # Sorted by parts, a directory is directly followed by its contents.
    for name in sorted(names, key=lambda name: name.split(b"/")):
        top = found[-1][1] if found else name
        found.append((name, top if not top or name.startswith(top + b"/") else name))
    return found


def _meant(word: str, folder: str) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, ...]]:
    """Return the pairs of a word, and if they are matches of a pattern the directories of which each is in one."""
    if not word:  # joined to the directory it would mean the whole directory
        raise Misconfigured("--files: an empty name", "the whole directory is .")
    text = text_of(word)
    if text.startswith("~") and os.path.lexists(os.path.join(folder, text)):
        word, text = f"./{word}", f"./{text}"
    where = os.path.join(folder, os.path.expanduser(text))
    if os.path.exists(where):
        return [_pair(folder, text, _name(text, folder))], ()
    colon = word.replace("[::]", "[--]").rfind(":")  # the last one that is not of an item
    before, after = text_of(word[: max(0, colon)]), text_of(word[colon + 1 :])
    where = os.path.join(folder, os.path.expanduser(before))
    if before and os.path.exists(where):
        # A file goes into `.`, as with cp; a directory becomes it.
        into = after[-1:] in ("/", "") or (os.path.normpath(after) == "." and not os.path.isdir(where))
        name = os.path.join(after, os.path.basename(os.path.normpath(where))) if into else after
        return [_pair(folder, before, _inside("--files", name))], ()
    if any(char in word for char in MAGIC):
        matches = sorted(_globbed(os.path.expanduser(word), folder))
        if matches:
            roots = () if name_of(word) is not None else _check_within(word, matches, folder)
            return [_pair(folder, match, _name(match, folder)) for match in matches], roots
        bare = _unquoted(word, False)
        why = "nothing matches" if any(char in bare for char in MAGIC) else "no such file or directory"
        raise Misconfigured(f"--files {text}: {why}")
    raise Misconfigured(f"--files {word}: no such file or directory")


def _check_within(word: str, matches: list[str], folder: str) -> tuple[bytes, ...]:
    """Return the directories in which a pattern begins. Raises Misconfigured for a link out of them."""
    fixed = os.path.expanduser(word)
    while name_of(fixed) is None:
        fixed = os.path.dirname(fixed)
    starts = (os.path.join(folder, _unquoted(fixed)), folder)
    roots = {os.fsencode(os.path.realpath(start)) for start in starts}
    above: dict[str, str] = {}  # directories, and where they are
    for match in matches:
        top, last = os.path.split(os.path.join(folder, match))
        path = os.path.join(above.get(top) or above.setdefault(top, os.path.realpath(top)), last)
        there = os.fsencode(os.path.realpath(path) if os.path.islink(path) else path)
        if all(name_below(there, root) is None for root in roots):
            raise Misconfigured(
                f"--files {word}: {match} is a link that leads out, to {os.fsdecode(there)}",
                f"--files {match}, if it is meant",
            )
    return tuple(roots)


def literal(text: str) -> str:
    """Return `text` as a part of a path or pattern that stands for itself, its stars and colons included.

    A pattern may be typed as `[?]`, and may be the name of a file. So the characters are doubled: `[??]`.
    """
    return "".join(f"[{char}{char}]" if char in MEANING else char for char in text)


def text_of(word: str) -> str:
    """Return a word as it was typed, with the parts of items as they are."""
    return "".join(text for text, _ in _pieces(word, False))


def _unquoted(word: str, as_they_are: bool = True) -> str:
    """Return a word with all that stands for itself in brackets as it is, or without that."""
    return "".join(text for text, quoted in _pieces(word, True) if as_they_are or not quoted)


def _pieces(word: str, typed: bool) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a word, and whether each was quoted: as `literal` does, or also as it may be `typed`."""
    done = 0
    while (at := word.find("[", done)) >= 0:
        char = word[at + 1 : at + 2] or "]"
        forms = (f"[{char}{char}]", f"[{char}]")[: 1 + typed] if char in MEANING else ()
        quoted = next((form for form in forms if word.startswith(form, at)), "")
        yield word[done : at + (not quoted)], False
        if quoted:
            yield char, True
        done = at + (len(quoted) or 1)
    yield word[done:], False


def name_of(word: str) -> str | None:
    """Return the one name that a pattern means; None if it may mean several."""
    return None if any(char in _unquoted(word, False) for char in MAGIC) else _unquoted(word)


def overlap(pattern: str, other: str) -> bool:
    """Return whether a match of a pattern may be that of another pattern, or a name; or in it, or above it."""
    one, name = name_of(pattern), name_of(other)
    if "." in (one, name):
        return True  # the whole directory
    if name is not None:
        return bool(_states(name.split("/"), pattern.split("/")))
    if one is not None:
        return bool(_states(one.split("/"), other.split("/")))
    first, second = sorted((fixed(pattern), fixed(other)), key=len)
    return second.startswith(first)


def fixed(pattern: str) -> str:
    """Return what all matches of a pattern begin with."""
    name = name_of(pattern)
    return min((pattern.partition(char)[0] for char in MAGIC), key=len) if name is None else name


def _pair(folder: str, word: str, name: str) -> tuple[bytes, bytes]:
    path = os.path.normpath(os.path.join(folder, os.path.expanduser(word)))
    return os.fsencode(path), b"" if name == "." else os.fsencode(name)


def _name(word: str, folder: str) -> str:
    _, mark, after = word.partition("/./")
    if mark:
        return _inside("--files", after)
    word = os.path.expanduser(word)
    name = os.path.normpath(word)
    if not os.path.isabs(name) and name.split("/")[0] != "..":
        return name
    last = os.path.basename(os.path.normpath(os.path.join(folder, name)))
    if not last:
        raise Misconfigured(f"--files {word}: not everything there is", "name a directory below it")
    return last


def _inside(option: str, name: str) -> str:
    clean = os.path.normpath(name) if name else ""
    if not clean or os.path.isabs(clean) or clean.split("/")[0] == ".." or "\0" in clean:
        relative = (
            "a relative path (that of an item of xargs: {/})" if option == "--returns" else "a relative path"
        )
        raise Misconfigured(
            f"{option}: {name!r} leads out of the job's directory", f"give {relative}, or A/./B"
        )
    return clean


def _from_here(path: bytes) -> bytes:
    return path if path[:1] == b"/" else os.path.join(os.fsencode(dirs.here()), path)


def located(path: bytes) -> bytes:
    """Return the absolute path of a file by directories that are no links; the file itself may be one."""
    folder, name = os.path.split(os.path.normpath(_from_here(path)))
    return os.path.join(os.path.realpath(folder), name)


def name_below(path: bytes, folder: bytes) -> bytes | None:
    """Return the name that a located path has in a located folder, b"" for that itself; None outside of it."""
    if path == folder:
        return b""
    top = folder.rstrip(b"/") + b"/"
    return path[len(top) :] if path.startswith(top) else None


def written(paths: Iterable[str] = ()) -> list[bytes]:
    """Return the located paths of files that this process writes: `paths`, and those of its stdout and stderr.

    A number is a descriptor, as for --report.
    """
    found: dict[bytes, None] = {}
    for path in paths:
        if path and not path.isdecimal():
            name = _from_here(os.fsencode(path))
            found.update(dict.fromkeys((located(name), os.path.realpath(name))))
    for fd in ("1", "2", *(path for path in paths if path.isdecimal())):
        try:
            there = os.readlink(f"/proc/self/fd/{fd}".encode())
            facts = os.stat(there, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and os.path.samestat(facts, os.fstat(int(fd))):
                found[there] = None
        except (OSError, OverflowError):
            pass  # it is closed, or its file has no name any more
    return [*found]


def names_below(paths: Collection[bytes], folder: bytes) -> list[str]:
    """Return the names of those located paths that are in a directory, however that is reached."""
    top = os.path.realpath(folder) if paths else b""
    return sorted(os.fsdecode(name) for path in paths if (name := name_below(path, top)))


def returns(words: list[str]) -> list[str]:
    """Return the patterns of --returns, normalised; of `A/./B` it is B. Raises Misconfigured."""
    return [_inside("--returns", word.partition("/./")[2] or word) for word in words]


def check_way(pattern: str, folder: str) -> None:
    """Refuse results that could not be put in place after the job: they go through no link."""
    path = folder
    for part in pattern.split("/")[:-1]:
        name = text_of(part) if os.path.lexists(os.path.join(path, text_of(part))) else name_of(part)
        path = os.path.join(path, name or "")
        if name is None or not os.path.lexists(path):
            return  # it is known when they come, or made for them
        if os.path.islink(path) or not os.path.isdir(path):
            raise Misconfigured(
                f"--returns {pattern}: {os.path.relpath(path, folder)} is no directory, or a link to one",
                "results go through no link: run it in the directory that the link leads to",
            )


def not_there(patterns: list[str]) -> str:
    """Return the fault of patterns without a match; "" if there are none."""
    return (
        f"--returns {', '.join(map(text_of, patterns))}: nothing there to be brought back" if patterns else ""
    )


def check_names(words: Iterable[str], folder: str) -> None:
    """Refuse FROM:NAME for a job that runs where the files are, which has them under their own names."""
    for word in words:
        where = os.path.join(folder, os.path.expanduser(text_of(word)))
        if ":" in _unquoted(word, False) and not os.path.exists(where) and name_of(word) is not None:
            raise Misconfigured(
                f"--files {text_of(word)}: the job runs in this directory, where the file has its own name",
                "a copy with that name, or --on HOST",
            )


def matching(
    patterns: list[str], folder: str, places: Places | None = None
) -> tuple[list[tuple[bytes, bytes]], list[str], list[str]]:
    """Expand patterns in `folder`: return (path, name) pairs, none inside another, and the patterns without a match.

    Then those of `places` at which something is left out: below a pair, or because no pattern names it.
    """
    places = places or Places(())
    names: dict[str, set[bytes]] = {"": set()}  # by the place that they are at
    missing, left = [], set()
    for pattern in patterns:
        text = text_of(pattern)
        matches = [text] if os.path.exists(os.path.join(folder, text)) else []
        if not matches and any(char in pattern for char in MAGIC):
            globbed = _globbed(pattern, folder)
            matches = [
                os.path.normpath(name) for name in globbed if os.path.exists(os.path.join(folder, name))
            ]
        matches = [name for name in matches if not name.startswith(ASIDE)]
        missing += [] if matches else [pattern]
        for name in matches:
            place = places.at(name)
            if place and not naming(place, [text]):
                left.add(place)
            else:
                names.setdefault(place, set()).add(b"" if name == "." else os.fsencode(name))
    here = os.fsencode(folder)
    tops = [name for each in names.values() for name, top in _topped(each) if name == top]
    texts = set(map(text_of, patterns))
    left.update(
        place
        for place in places.there(folder, tops)
        if place not in texts and any(_is_above(os.fsdecode(top), place) for top in tops)
    )
    return [(os.path.join(here, name) if name else here, name) for name in tops], missing, sorted(left)


def _naming(place: str, patterns: list[str]) -> list[str]:
    return [pattern for pattern in patterns if naming(place, [text_of(pattern)])]


def _is_above(name: str, place: str) -> bool:
    return not name or (name != place and paths.within(place, name))


def _globbed(pattern: str, folder: str) -> list[str]:
    """Return the matches of `pattern` in `folder`, relative to it like the pattern. The root_dir of glob is of 3.10."""
    import glob

    start = os.path.join(folder, "")
    matches = glob.glob(os.path.join(glob.escape(start), pattern), recursive=True)
    return matches if os.path.isabs(pattern) else [match[len(start) :] for match in matches if match != start]


def heeded(name: bytes, patterns: list[str], places: Places) -> list[str]:
    """Return the patterns that may bring `name`: if it is at one of `places`, those that name that."""
    place = places.at(os.fsdecode(name))
    return _naming(place, patterns) if place else patterns


def allowed(name: bytes, patterns: list[str]) -> bool:
    """Return whether `name` matches a pattern, or is in a directory that matches one."""
    parts = os.fsdecode(name).split("/")
    for pattern in patterns:
        words = pattern.split("/")
        if pattern == "." or len(words) in _states(parts, words):
            return True
    return False


def _states(parts: list[str], pattern: list[str]) -> set[int]:
    """Return which lengths of a pattern may be matched by all of `parts`; its own length if a part of them match it.

    These are parallel states, without backtracking: a hostile sender could choose names with very many matches.
    """
    deep, places = "**" in pattern, {0}
    if deep:
        places = _reached(places, pattern)
    for part in parts:
        behind = [at for at in places if at < len(pattern) and is_like(part, pattern[at])]
        places = {at if pattern[at] == "**" else at + 1 for at in behind}
        if deep:
            places = _reached(places, pattern)
        if len(pattern) in places:
            break
    return places


def _reached(places: set[int], pattern: list[str]) -> set[int]:
    """Add the positions behind each `**`, which may match nothing."""
    for at, part in enumerate(pattern):
        if part == "**" and at in places:
            places.add(at + 1)
    return places


def is_like(part: str, pattern: str) -> bool:
    """Return whether a part of a name matches a part of a pattern."""
    if pattern == "**":
        return not part.startswith(".")
    text = text_of(pattern) if "[" in pattern else pattern
    if part == text or not ("*" in pattern or "?" in pattern or "[" in pattern):
        return part == text
    from fnmatch import fnmatchcase

    hidden = part.startswith(".") and not pattern.startswith(".")
    return not hidden and fnmatchcase(part, pattern)
