"""wire: frames, windows, sessions and lines: the protocol as machines without a descriptor, a clock or a thread."""
