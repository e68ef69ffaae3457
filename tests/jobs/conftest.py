"""`lab.run` and `agents.quine` fork a process that has loaded the verbs."""

from tests.support.forked import agents as agents
from tests.support.forked import forks as forks
from tests.support.forked import lab as lab
