"""ssh: one connection and one channel of ssh as a duplex."""
