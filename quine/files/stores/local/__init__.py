"""local: a store in a directory of this machine."""
