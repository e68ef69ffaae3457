"""The lab: real sshd hosts on loopback, for tests, the demo and the benchmarks. See `lab.py` for its laws."""

from tests.lab.host import Host, Settings
from tests.lab.lab import Lab
from tests.lab.processes import Process, clear_peak, marked, peak_rss, wait_gone
from tests.lab.proxy import Proxy

__all__ = ["Host", "Lab", "Process", "Proxy", "Settings", "clear_peak", "marked", "peak_rss", "wait_gone"]
