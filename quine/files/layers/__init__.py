"""layers: stores that wrap another store: the quota of a tree, and the reserved directory `.quine`."""
