"""The files that the items of a batch bring to a host, and fetch from it."""
