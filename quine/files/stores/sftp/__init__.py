"""sftp: a directory that an sshd serves."""
