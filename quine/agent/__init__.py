"""agent: one agent as a process: the host loop, its shell and tools, its children, and how it ends."""
