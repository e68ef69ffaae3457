"""wire: the files tier over the link between a job and its origin: protocol, server and client."""
