"""Mount: the shared files as a directory, by the kernel's FUSE protocol, without a library."""
