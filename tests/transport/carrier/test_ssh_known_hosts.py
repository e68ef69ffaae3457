"""Host keys on file: quine reads lines that OpenSSH writes, and OpenSSH reads lines that quine writes."""

from __future__ import annotations

import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.carrier.ssh.known_hosts import KnownHosts, matches, name_of, parse

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBp6ndiISvbBCiCCZujMNBiRrjOxSSfqlBl3f69wp82i"
OTHER = KEY[:-1] + "j"


def test_names_are_those_of_ssh() -> None:
    assert name_of("Example.Org", 22) == "example.org"
    assert name_of("example.org", 2222) == "[example.org]:2222"
    assert name_of("::1", 2222) == "[::1]:2222"


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        ("a", "a", True),
        ("A,b", "a", True),
        ("a", "ab", False),
        ("*.org", "x.org", True),
        ("*.org,!x.org", "x.org", False),
        ("!x.org,*.org", "x.org", False),
        ("h?", "h1", True),
        ("[h1]:2222", "[h1]:2222", True),
        ("[h1]:2222", "h1", False),
        ("[h1]:2222", "1", False),
        ("[*]:2222", "[h1]:2222", True),
        ("a.b", "axb", False),
        ("|1|no|base64", "a", False),
        ("|1|", "a", False),
        ("|2|AAAA|AAAA", "a", False),
    ],
)
def test_the_first_field_of_a_line(names: str, name: str, found: bool) -> None:
    assert matches(names, name) is found


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    for entry in parse(text, Path("x")):
        matches(entry.names, "host")


def test_lines_are_found_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(
        f"# h1 {KEY}\n\nnonsense\n@cert-authority *.org {KEY}\n@revoked h1 {OTHER}\n"
        f"h1,h2 {KEY} comment\n@odd h1 {KEY}\n"
    )
    files = KnownHosts([tmp_path / "absent", path])
    assert [(e.marker, e.line) for e in files.find("h1")] == [("revoked", 5), ("", 6)]
    assert [(e.marker, e.key) for e in files.find("x.org")] == [("cert-authority", KEY)]


def test_a_first_contact_is_recorded_once_and_privately(tmp_path: Path) -> None:
    path = tmp_path / ".ssh" / "known_hosts"
    files = KnownHosts([path])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: files.record(f"h{number % 4}", KEY), range(32)))
    assert sorted(path.read_text().splitlines()) == [f"h{number} {KEY}" for number in range(4)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_without_a_last_newline_is_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"h1 {KEY}")
    KnownHosts([path]).record("h2", OTHER)
    assert path.read_text() == f"h1 {KEY}\nh2 {OTHER}\n"


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_openssh_agrees(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    KnownHosts([path]).record("[127.0.0.1]:2222", KEY)
    find = ["ssh-keygen", "-F", "[127.0.0.1]:2222", "-f", str(path)]
    assert KEY in subprocess.run(find, capture_output=True, text=True, check=True).stdout
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "127.0.0.1" not in path.read_text()
    (entry,) = KnownHosts([path]).find("[127.0.0.1]:2222")
    assert entry.key == KEY
    assert KnownHosts([path]).find("127.0.0.1") == []
