"""job: one child process behind a channel: its start, its streams, its end; and the launcher beside the node."""
