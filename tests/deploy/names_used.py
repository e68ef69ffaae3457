"""Run by an old Python: prints each name of a module that our code uses and this Python lacks, `FILE MODULE NAME`.

Imports for type checkers are left out, and so are names that are looked up in another way (getattr, after hasattr).
"""

from __future__ import annotations

import ast
import importlib
import os
import sys

root = sys.argv[1]
sys.path.insert(0, root)
import transport  # noqa: E402, F401 - adds the names that are made up for

OURS = ("quine", "transport", "deploy")
LEAN = {"signal": "signal", "socket": "socket"}  # of transport.lean


def lacks(module, name):
    try:
        if name and hasattr(importlib.import_module(module), name):
            return False
        importlib.import_module(module + "." + name if name else module)
    except ImportError:
        return True
    return False


def checked(path):
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    typing_only = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            typing_only |= {inner for part in node.body for inner in ast.walk(part)}
    nodes = [node for node in ast.walk(tree) if node not in typing_only]
    modules, used = {}, set()
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
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            used.add((modules[node.value.id], node.attr))
    return sorted(pair for pair in used if pair[0].split(".")[0] not in OURS and lacks(*pair))


for package in OURS:
    for folder, _, files in sorted(os.walk(os.path.join(root, package))):
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                for module, lacking in checked(path):
                    print(os.path.relpath(path, root), module, lacking)
