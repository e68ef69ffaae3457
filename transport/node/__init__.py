"""node: the daemon of a user on a machine: its links, its hosts, the routes between them."""
