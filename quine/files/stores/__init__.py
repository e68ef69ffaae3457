"""stores: every kind of store behind the one interface `Tier`, and the choice of a store by URL."""
