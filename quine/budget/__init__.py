"""budget: what a tree of agents may spend, counted on every machine and settled at the origin."""
