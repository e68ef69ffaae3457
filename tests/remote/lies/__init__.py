"""Lies that break each row of the table of a host's words, told at full speed: for each a plan for the double of
tests/transport/node/hostile_program.py, the command of the origin that meets it, and the end that it has.
"""

from __future__ import annotations

from tests.remote.lies.agents import ASKED
from tests.remote.lies.batches import HOSTS
from tests.remote.lies.files import FILES
from tests.remote.lies.lie import Lie
from tests.remote.lies.links import JOBS, LINKS

LIES: dict[str, tuple[Lie, ...]] = {**LINKS, **JOBS, **FILES, **ASKED, **HOSTS}
