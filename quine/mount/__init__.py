"""The files tier as a directory: the kernel's FUSE protocol, spoken without a library."""
