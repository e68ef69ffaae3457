"""cli: the commands of `quine fs` and what they share."""
