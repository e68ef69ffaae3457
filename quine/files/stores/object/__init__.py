"""object: a bucket of an object store, by flat keys."""
