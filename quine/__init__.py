"""quine: an LLM agent as a POSIX process, whose fork can land on another machine."""

__version__ = "0.1.0"
