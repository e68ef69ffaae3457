"""transport: moves bytes, starts processes and carries named requests between nodes; knows nothing of agents.

May import: backports, provenance.
"""

import os
import sys

# PyPy has none of the three; a CPython has those that the system had on which it was built. Elsewhere than on Linux
# `quine/__main__.py` ends the process, after it has loaded this.
if sys.platform == "linux" and (
    sys.version_info < (3, 11)
    or not all(hasattr(os, name) for name in ("waitid", "pidfd_open", "memfd_create"))
):
    from transport import backports

    backports.add_missing()
