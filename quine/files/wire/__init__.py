"""wire: the tier of a job over the link to its origin: protocol, server and client."""
