"""stores: each kind of store behind the one interface of the tier, and how a URL finds its store."""
