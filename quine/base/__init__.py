"""base: used by every other room: errors, text, sizes, directories, the log, processes, atomic file replacement.

May import: deploy, transport.
"""
