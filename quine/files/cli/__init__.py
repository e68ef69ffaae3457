"""cli: the commands of `quine fs` and their common parts."""
