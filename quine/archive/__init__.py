"""archive: copies of tapes and results in the shared files, written there and read back.

May import: base, tape, providers, files, transport.
"""
