"""Files for a job over there, and what it made brought back: by content, each once, and all of it or nothing."""
