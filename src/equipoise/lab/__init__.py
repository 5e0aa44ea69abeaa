"""Runs that pair arms on problems: made-up runs with a known truth, and the demo built from them."""
