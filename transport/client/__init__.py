"""client: the end of a job that its caller has: streams, signals and exit status of this process."""
