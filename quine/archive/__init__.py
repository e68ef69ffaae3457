"""archive: copies of tapes and results in the shared files, written there and read back."""
