"""cli: the command line: one table of options, and a module for each verb or family of verbs."""
