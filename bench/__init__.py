"""Benchmarks: each figure beside its peer, in one run, on real sshd hosts on loopback."""
