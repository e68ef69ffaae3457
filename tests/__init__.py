"""Tests: flat, fast, without sleeps; `tests.lab` gives them real sshd hosts."""
