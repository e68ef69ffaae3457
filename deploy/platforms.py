"""The Python of a host, as far as packages depend on it: which wheels it can load, and which requirements it has.

Law: each value that a host reports is checked, because it reaches programs and names of files here.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from dataclasses import dataclass

_IMPLEMENTATIONS = {"cpython": ("cp", "CPython"), "pypy": ("pp", "PyPy")}
_OLD_NAMES = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}  # and the glibc 2.x that each means
_FIELDS = {
    "implementation": r"[a-z]{1,20}",
    "version": r"\d{1,2}\.\d{1,3}\.\d{1,3}",
    "abi": r"[a-z0-9_]{1,30}",
    "libc": r"glibc|musl|unknown",
    "libc_version": r"\d{1,2}\.\d{1,3}",
    "machine": r"[a-z0-9_]{1,20}",
}
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?\s*([^;]*?)\s*(?:;\s*(.*))?")


@dataclass(frozen=True)
class Platform:
    """A Python and its machine; the fields are those of `deploy.there.layers.platform`."""

    implementation: str
    version: str
    abi: str
    libc: str
    libc_version: str
    machine: str

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Raises ValueError."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.keys() != _FIELDS.keys():
            raise ValueError(f"not a platform: {text[:200]!r}")
        for name, pattern in _FIELDS.items():
            if not isinstance(values[name], str) or not re.fullmatch(pattern, values[name]):
                raise ValueError(f"{name} of its Python is {values[name]!r}")
        return cls(**values)

    def __str__(self) -> str:
        known = _IMPLEMENTATIONS.get(self.implementation, ("", self.implementation))[1]
        return f"{known} {self.minor} on {self.machine} with {self.libc} {self.libc_version}"

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def short(self) -> str:
        """The implementation as wheels name it."""
        return _IMPLEMENTATIONS.get(self.implementation, (self.implementation, ""))[0]

    def systems(self) -> list[str]:
        """Return the platform tags that it can load, the newest first."""
        major, minor = map(int, self.libc_version.split("."))
        kinds = [f"linux_{self.machine}"]
        if self.libc == "musl":
            kinds += [f"musllinux_{major}_{each}_{self.machine}" for each in range(minor, -1, -1)]
        if self.libc == "glibc":
            kinds += [f"manylinux_2_{each}_{self.machine}" for each in range(minor, 4, -1)]
            kinds += [f"{name}_{self.machine}" for name, least in _OLD_NAMES.items() if minor >= least]
        return kinds

    def fits(self, tag: str) -> bool:
        """Whether a wheel with this tag, such as `cp311-abi3-manylinux_2_17_x86_64`, can be loaded. Sets have dots."""
        python, abi, system = (part.split(".") for part in tag.split("-"))
        return any(self._fits(*each) for each in itertools.product(python, abi, system))

    def _fits(self, python: str, abi: str, system: str) -> bool:
        major, minor = map(int, self.minor.split("."))
        found = re.fullmatch(r"([a-z]+)(\d)(\d*)", python)
        if found is None or int(found[2]) != major or system not in ("any", *self.systems()):
            return False
        kind, least = found[1], int(found[3] or 0)
        if abi == "none":
            return (kind == "py" and least <= minor) or (kind == self.short and least == minor)
        if abi == "abi3":
            return kind == "cp" == self.short and least <= minor and not self.abi.endswith("t")
        return abi == self.abi and kind == self.short and least == minor

    def runs(self, versions: str) -> bool:
        """Whether this Python is one of these versions, a line `Requires-Python`. Raises ValueError."""
        for part in filter(None, (part.strip() for part in versions.split(","))):
            found = re.fullmatch(r"([<>=!~]+)\s*([0-9.]+?)(\.\*)?", part)
            if found is None:
                raise ValueError(f"versions that cannot be read: {versions}")
            own = ".".join(self.version.split(".")[: found[2].count(".") + 1]) if found[3] else self.version
            if not self.wants(f"python_full_version {found[1]} '{found[2]}'", "", own):
                return False
        return True

    def wants(self, marker: str, extra: str, version: str = "") -> bool:
        """Whether a requirement with this marker counts here. Raises ValueError for a marker that it cannot read."""
        values = {
            "python_version": self.minor,
            "python_full_version": version or self.version,
            "implementation_name": self.implementation,
            "implementation_version": self.version,
            "platform_python_implementation": _IMPLEMENTATIONS.get(self.implementation, ("", ""))[1],
            "platform_machine": self.machine,
            "platform_system": "Linux",
            "platform_release": "",
            "platform_version": "",
            "sys_platform": "linux",
            "os_name": "posix",
            "extra": extra,
        }
        try:
            text = re.sub("[~=]==?", lambda found: ">=" if found[0][0] == "~" else "==", marker)
            return _value(ast.parse(text.strip(), mode="eval").body, values)
        except (SyntaxError, KeyError) as error:
            raise ValueError(f"a marker that cannot be read: {marker}") from error


def _value(node: ast.expr, values: dict[str, str]) -> bool:
    """Evaluate a marker, which is an expression of Python: comparisons, and, or, parentheses."""
    if isinstance(node, ast.BoolOp):
        results = [_value(each, values) for each in node.values]
        return all(results) if isinstance(node.op, ast.And) else any(results)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise KeyError("expression")
    one, other = _text(node.left, values), _text(node.comparators[0], values)
    op = node.ops[0]
    if isinstance(op, (ast.In, ast.NotIn)):
        return (one in other) == isinstance(op, ast.In)
    left, right = _number(one), _number(other)
    if isinstance(op, (ast.Eq, ast.NotEq)):
        equal = left == right if left and right else one == other
        return equal == isinstance(op, ast.Eq)
    if isinstance(op, (ast.Lt, ast.LtE)):
        return left < right or (isinstance(op, ast.LtE) and left == right)
    return left > right or (isinstance(op, ast.GtE) and left == right)


def _text(node: ast.expr, values: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise KeyError("operand")


def _number(text: str) -> tuple[int, ...]:
    """Return a version as numbers that compare; () if it is none."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers) or ((0,) if found else ())


@dataclass(frozen=True)
class Requirement:
    """One line `Requires-Dist`."""

    name: str
    extras: tuple[str, ...]
    versions: str
    marker: str

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Raises ValueError."""
        found = _REQUIREMENT.fullmatch(text)
        if found is None:
            raise ValueError(f"a requirement that cannot be read: {text}")
        extras = tuple(filter(None, (each.strip() for each in (found[2] or "").split(","))))
        return cls(canonical(found[1]), extras, found[3].strip("() "), found[4] or "")


def canonical(name: str) -> str:
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()
