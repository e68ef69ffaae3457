"""Tests: a folder for each room of the program, fast and without sleeps; `tests.lab` has real sshd hosts."""
