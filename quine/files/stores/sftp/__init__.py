"""sftp: a store in a directory that an sshd serves."""
