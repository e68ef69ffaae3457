"""The private names of asyncssh that are used: all of them are listed, and the installed library has each."""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

import transport.carrier.ssh
from transport.carrier.ssh import connect, private

ROOM = Path(transport.carrier.ssh.__file__).parent
assert connect  # it imports the library as a dial does


def test_the_installed_library_has_all_names() -> None:
    assert private.missing() == [], f"asyncssh {importlib.metadata.version('asyncssh')}"


def test_a_name_that_has_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "CHANNEL", (*private.CHANNEL, "_gone"))
    assert private.missing() == ["SSHClientChannel._gone"]


@pytest.mark.law
def test_all_names_that_are_used_are_listed() -> None:
    trees = [ast.parse(path.read_text()) for path in ROOM.glob("*.py") if path.name != "asyncssh_imports.py"]
    listed = {*private.CONNECTION, *private.CHANNEL, *private.ENCRYPTION, *private.GCM, *private.PAIR}
    used = {name for tree in trees for name in _used(tree)}
    own = {name for tree in trees for name in _own(tree)}
    assert used - own <= listed and listed <= used


def _used(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of objects other than the `self` of a class here, also those that stand as text."""
    own = {id(node) for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in ast.walk(each)}
    for node in ast.walk(tree):
        name: object = ""
        if isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            name = "" if is_self and id(node) in own else node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            name = node.slice.value
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            name = ast.literal_eval(node.args[1])
        if isinstance(name, str) and name.startswith("_") and not name.startswith("__"):
            yield name


def _own(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that classes of the room have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in ast.walk(node):
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield each.name
                elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    if isinstance(each.value, ast.Name) and each.value.id == "self":
                        yield each.attr
                elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id
