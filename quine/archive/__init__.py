"""archive: tapes and results kept in the shared files, and read back from there."""
