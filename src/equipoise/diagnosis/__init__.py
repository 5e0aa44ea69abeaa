"""Estimates → findings → verdict → prescription, as one table of rules."""
