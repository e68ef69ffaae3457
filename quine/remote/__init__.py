"""remote: agents on other machines: the local proxy of one, and the origin's answers to its requests."""
