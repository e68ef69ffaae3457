"""mount: the shared files as a directory, by the kernel's FUSE protocol, without a library.

May import: base, files, transport.
"""
