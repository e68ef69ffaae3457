"""Puts a stamp into the wheel: the hash of this build, so that an installed client need not look at each source."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Stamp(BuildHookInterface):  # type: ignore[type-arg]
    """The hook, as hatchling calls it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # its sources change
        sys.path.insert(0, self.root)
        from transport import this_build

        self._made = tempfile.TemporaryDirectory()
        stamp = Path(self._made.name, this_build.STAMP)
        contents = ((name, Path(path).read_bytes()) for name, path, _ in this_build.sources())
        stamp.write_text(this_build.hash_of(contents))
        build_data["force_include"][str(stamp)] = f"transport/{this_build.STAMP}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._made.cleanup()
