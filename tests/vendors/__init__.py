"""Strict providers on loopback that misbehave by plan; one file a dialect beside the chassis."""
