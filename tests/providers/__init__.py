"""Tests of each wire format of a model, and the HTTP client below them."""
