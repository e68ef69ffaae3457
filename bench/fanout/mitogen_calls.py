"""The peer: `true` by mitogen, in contexts over ssh. python -m bench.fanout.mitogen_calls CONFIG CALLS AT_ONCE HOST…"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def main(config: str, calls: str, at_once: str, *hosts: str) -> int:
    import mitogen.master
    import mitogen.utils

    def run(router: Any) -> None:
        def connect(host: str) -> Any:
            return router.ssh(
                hostname=host, ssh_args=["-F", config], check_host_keys="ignore", python_path=[sys.executable]
            )

        with ThreadPoolExecutor(len(hosts)) as pool:
            contexts = list(pool.map(connect, hosts))
        chains = [context for context in contexts for _ in range(int(at_once))]

        def work(number: int) -> None:
            for _ in range(number, int(calls), len(chains)):
                assert chains[number].call(subprocess.call, ["true"]) == 0

        with ThreadPoolExecutor(len(chains)) as pool:
            list(pool.map(work, range(len(chains))))

    mitogen.utils.log_to_file("/dev/null")
    mitogen.utils.run_with_router(run)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
