"""detached: a batch that goes on without its terminal, on this machine (`here`) or at a host (`away` and `arrival`)."""
