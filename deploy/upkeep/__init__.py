"""Upkeep of hosts besides the binary: brings a Python to a host that has none, and takes away all that quine put there.

May import: deploy, there, transport.
"""
