"""each: one command on every host that matches, at the same time, and its outputs together."""
