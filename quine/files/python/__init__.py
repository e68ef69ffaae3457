"""python: `quine://` for Python, as an fsspec filesystem."""
