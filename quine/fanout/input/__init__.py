"""input: the items of a batch: their sources, records and rows, and the replacement strings of a command."""
