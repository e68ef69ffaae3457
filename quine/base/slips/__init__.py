"""slips: command lines that say something else than their writer meant; the errors that refuse them, with the cure.

Modules of base: they import what base may. Law: a word of a quoted mission is never looked at.
"""
