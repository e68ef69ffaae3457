"""staging: files for a remote job and its results back, by content, each sent once, all of it or nothing.

May import: base, tape, files, transport.
"""
