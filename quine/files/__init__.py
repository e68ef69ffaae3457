"""files: the files tier: one filesystem for a tree of agents that spans machines."""
