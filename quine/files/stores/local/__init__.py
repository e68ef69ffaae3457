"""local: a directory of this machine as a store."""
