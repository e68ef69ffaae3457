"""wire: the protocol as sans-IO machines (frames, windows, sessions, lines): no descriptor, no clock, no thread.

May import: transport.
"""
