"""Tests of inventory, build and installation."""
