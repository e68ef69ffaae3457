"""object: a store in a bucket of an object store, whose keys are flat."""
