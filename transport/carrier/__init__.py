"""carrier: what carries the bytes of a session: a pipe, a socket, a channel of ssh; and the first words on it."""
