"""node: `quine node --status` and `--resume`: the state of the node of this machine and of the brokers of this user."""
