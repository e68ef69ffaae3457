"""layers: stores over stores: what a tree may have, and what is hidden from it."""
