"""Run by an old Python: prints what our code uses of the standard library and this Python lacks, `FILE MODULE NAME`.

That is a name of a module, or `NAME()` for a call with an argument that the function does not take here. Imports for
type checkers are left out, and so are names that are looked up in another way (getattr, after hasattr).
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import sys

root = sys.argv[1]
sys.path.insert(0, root)
import transport  # noqa: E402, F401 - adds the names that are made up for

OURS = ("quine", "transport", "deploy")
LEAN = {"signal": "signal", "socket": "socket"}  # of transport.lean


@functools.cache  # a module that is not there is looked for long
def lacks(module, name):
    try:
        if name and hasattr(importlib.import_module(module), name):
            return False
        importlib.import_module(module + "." + name if name else module)
    except ImportError:
        return True
    return False


def takes(module, name, call):
    """Whether the function takes the arguments of the call, as far as they can be seen in it."""
    try:
        signature = inspect.signature(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, TypeError, ValueError):
        return True
    spread = any(isinstance(part, ast.Starred) for part in call.args) or any(
        not word.arg for word in call.keywords
    )
    args = [part for part in call.args if not isinstance(part, ast.Starred)]
    words = {word.arg: None for word in call.keywords if word.arg}
    try:
        (signature.bind_partial if spread else signature.bind)(*args, **words)
    except TypeError:
        return False
    return True


def checked(path):
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    typing_only = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            typing_only |= {inner for part in node.body for inner in ast.walk(part)}
    nodes = [node for node in ast.walk(tree) if node not in typing_only]
    modules, functions, used = {}, {}, set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                modules[(alias.asname or alias.name).split(".")[0]] = whole
                used.add((alias.name, ""))
        elif isinstance(node, ast.ImportFrom) and node.module == "transport.lean":
            modules.update({alias.name: LEAN[alias.name] for alias in node.names if alias.name in LEAN})
        elif isinstance(node, ast.ImportFrom):
            used |= {(node.module, alias.name) for alias in node.names}
            functions.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
    calls = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            used.add((modules[node.value.id], node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            calls.append((*functions[node.func.id], node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.func.value
            if isinstance(value, ast.Name) and value.id in modules:
                calls.append((modules[value.id], node.func.attr, node))
    lacking = {pair for pair in used if pair[0].split(".")[0] not in OURS and lacks(*pair)}
    for module, name, call in calls:
        if module.split(".")[0] not in OURS and not takes(module, name, call):
            lacking.add((module, name + "()"))
    return sorted(lacking)


for package in OURS:
    for folder, _, files in sorted(os.walk(os.path.join(root, package))):
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                for module, lacking in checked(path):
                    print(os.path.relpath(path, root), module, lacking)
