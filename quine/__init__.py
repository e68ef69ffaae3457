"""quine: an LLM agent as a POSIX process, whose fork can land on another machine."""

import transport  # noqa: F401 - first: it adds the names that an interpreter lacks

__version__ = "0.1.0"
