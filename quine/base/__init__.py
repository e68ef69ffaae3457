"""base: used by every other room: errors, text, sizes, directories, the log, processes.

May import: deploy, transport.
"""
