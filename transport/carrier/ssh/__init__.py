"""ssh: one connection with one channel of ssh as a duplex, and the check of host keys."""
