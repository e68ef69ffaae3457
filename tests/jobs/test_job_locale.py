"""The locale of jobs: that of the login, and not the one by which Python helps itself in the C locale (PEP 538)."""

from __future__ import annotations

import subprocess

from tests.lab import Lab

ASKS = 'echo "${LC_CTYPE-none} ${LC_ALL-none} ${LANG-none}"; locale charmap'


def test_a_job_has_the_locale_that_ssh_gives(lab: Lab) -> None:
    by_ssh = subprocess.run([*lab.ssh("h1"), ASKS], env=lab.env, capture_output=True, check=True).stdout
    assert by_ssh.startswith(b"none none none\n"), "the lab's logins have no locale"
    assert lab.run(["run", "--on", "h1", "--", "sh", "-c", ASKS], check=True).stdout == by_ssh
    id = (
        lab.run(["run", "--detach", "--on", "h1", "--", "sh", "-c", ASKS], check=True).stdout.decode().strip()
    )
    assert lab.run(["attach", "--on", "h1", id], check=True).stdout == by_ssh
    assert lab.run(["rsh", "h1", ASKS], check=True).stdout == by_ssh


def test_a_locale_that_is_given_stays(lab: Lab) -> None:
    words = ["run", "--on", "h1", "--env", "LC_CTYPE=C.UTF-8", "--", "sh", "-c", "echo $LC_CTYPE"]
    assert lab.run(words, check=True).stdout == b"C.UTF-8\n"
    assert lab.run(["run", *words[3:]], check=True).stdout == b"C.UTF-8\n"


def test_a_job_of_this_machine_has_the_locale_of_its_caller(lab: Lab) -> None:
    done = lab.sh(f"unset LANG LC_ALL LC_CTYPE; quine run -- sh -c '{ASKS}'")
    assert done.stdout.startswith(b"none none none\n"), done
