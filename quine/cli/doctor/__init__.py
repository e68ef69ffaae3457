"""doctor: the examination of this machine, of the way to a host, and of the guest.

May import: as quine.cli.
"""
