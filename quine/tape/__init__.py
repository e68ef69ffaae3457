"""tape: the record of a session: written, read, shown, verified and replayed."""
