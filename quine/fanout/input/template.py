"""The command of a job from a template: replacement strings in the manner of GNU parallel, but in an argv.

    {} the arguments   {.} without extension   {/} base name   {//} directory   {/.} base name without extension
    {#} number of the job   {%} its slot   {1} {2.} {-1/} one argument, counted from the front or the end
    {name} {name.} … a field of a JSON line, or a column with that name, changed in the same ways

Laws
1. No value is ever parsed again: not by a shell, and not for replacement strings.
2. A word that is nothing but {} (or {.} and so on) becomes a word for each argument; within a word they are joined by
   blanks.
3. A command without any replacement string gets {} as its last word.
4. Where there are names, any text in braces may be one. It is replaced if a column or a field has this name. Without
   one a likely name is a fault, because `rm -r /data/{dir.name}` must not run with that text, and `{print $1}` is text.
"""

from __future__ import annotations

import re

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_SUFFIX = re.compile(r"\.[^/.]*\Z")


def _bare(text: str) -> str:
    return _SUFFIX.sub("", text)


def _base(text: str) -> str:
    return text.rpartition("/")[2]


def _directory(text: str) -> str:
    """dirname(1)."""
    head, slash, _ = text.rstrip("/").rpartition("/")
    if not text.strip("/") and text:
        return "/"
    return (head.rstrip("/") or "/") if slash else "."


CHANGES: dict[str, Callable[[str], str]] = {
    "": str,
    ".": _bare,
    "/": _base,
    "//": _directory,
    "/.": lambda text: _bare(_base(text)),
}
_PLAIN = r"\{(-?[1-9][0-9]*)?(\.|//|/\.|/)?\}|\{([#%])\}"
_NAME = r"|\{([^{}]+)\}"
_LIKELY = re.compile(
    r"(?=.*[^\W\d])[\w@(](?:[\w .()\[\]/%#@-]|:(?! ))*(?<! )"
)  # a name that a column could have


class Part:
    """One replacement string of a word."""

    __slots__ = ("change", "mark", "name", "position")

    def __init__(self, position: str, change: str, mark: str, name: str) -> None:
        self.position = int(position or 0)
        self.change = CHANGES[change]
        self.mark = mark  # # or %
        self.name = name  # of a field or a column, with its change

    @property
    def sure(self) -> bool:
        """Whether it is a replacement string whatever the names of the item are."""
        return not self.name or bool(_LIKELY.fullmatch(self.name))

    def named(self, item: Values) -> str | None:
        """Return the value of the field or the column that it names; None if it names none."""
        fields = item.fields or {}
        if self.name in fields:
            return fields[self.name]
        for change in ("//", "/.", ".", "/"):
            if self.name.endswith(change) and (name := self.name[: -len(change)]) in fields:
                return CHANGES[change](fields[name])
        return None

    def values(self, item: Values) -> Sequence[str]:
        """Return the values that it has in this job."""
        if self.mark:
            return [str((item.job or item.number) if self.mark == "#" else item.slot)]
        if self.name:
            value = self.named(item)
            if value is None and self.sure:
                raise Misconfigured(f"item {item.number} has no field {self.name[:80]}")
            return [f"{{{self.name}}}" if value is None else value]
        if not self.position:
            return [self.change(arg) for arg in item.args]
        at = self.position - 1 if self.position > 0 else len(item.args) + self.position
        return [self.change(item.args[at])] if 0 <= at < len(item.args) else [""]


class Values:
    """The values of the replacement strings of one job."""

    __slots__ = ("args", "fields", "job", "number", "slot")

    def __init__(
        self, args: tuple[str, ...], number: int = 1, slot: int = 1, fields: Mapping[str, str] | None = None
    ) -> None:
        self.args = args
        self.number = number
        self.job = 0  # the number that a job of a run before has; 0: that of its item in this run
        self.slot = slot
        self.fields = fields


class Word:
    """One word of a template: texts with replacement strings between them."""

    __slots__ = ("parts",)

    def __init__(self, text: str, replace: str = "{}", names: bool = False) -> None:
        pattern = _PLAIN + (_NAME if names else "")
        if replace != "{}":  # -I: the plain one is written otherwise, {} means itself
            pattern = re.escape(replace) + "|(?!\\{\\})(?:" + pattern + ")"
        self.parts: list[str | Part] = []
        at = 0
        for found in re.finditer(pattern, text):
            if at < found.start():
                self.parts.append(text[at : found.start()])
            position, change, mark, name = (group or "" for group in (*found.groups(), None)[:4])
            self.parts.append(Part(position, change, mark, name))
            at = found.end()
        if at < len(text):
            self.parts.append(text[at:])

    @property
    def replaced(self) -> bool:
        """Whether there is a replacement string in it, whatever the names of an item are."""
        return any(isinstance(part, Part) and part.sure for part in self.parts)

    @property
    def varies(self) -> bool:
        """Whether its text may differ from item to item."""
        return any(isinstance(part, Part) for part in self.parts)

    @property
    def beginning(self) -> str:
        """The text before the first replacement string."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    @property
    def numbered(self) -> bool:
        """Whether its text has the number of the job."""
        return any(isinstance(part, Part) and part.mark == "#" for part in self.parts)

    def names(self, item: Values) -> bool:
        """Whether it has the name of a field or a column of an item."""
        return any(
            isinstance(part, Part) and part.name and part.named(item) is not None for part in self.parts
        )

    def text(self, item: Values) -> str:
        return "".join(part if isinstance(part, str) else " ".join(part.values(item)) for part in self.parts)

    def path(self, item: Values) -> str:
        """Return the text for --files and --returns, in which what comes from the item stands for itself.

        An item named `~` once sent the home directory to a host.
        """
        from quine.staging.spec import literal

        made = "".join(
            part if isinstance(part, str) else literal(" ".join(part.values(item))) for part in self.parts
        )
        return f"./{made}" if made.startswith("~") and not isinstance(self.parts[0], str) else made

    def words(self, item: Values) -> Iterable[str]:
        if len(self.parts) == 1 and isinstance(part := self.parts[0], Part):
            return part.values(item)
        return [self.text(item)]


class Template:
    """A command whose words hold replacement strings."""

    def __init__(
        self, words: Sequence[str], replace: str = "{}", names: bool = False, append: bool = True
    ) -> None:
        """`names`: {name} is a field. `append`: a template without any replacement string gets {} at its end."""
        self._words = [Word(word, replace, names) for word in words]
        self.replaced = any(word.replaced for word in self._words)
        self._appends = append and not self.replaced

    def argv(self, item: Values) -> list[str]:
        words = [word for each in self._words for word in each.words(item)]
        if self._appends and not any(word.names(item) for word in self._words):
            words += item.args
        return words
