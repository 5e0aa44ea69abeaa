"""Estimators with intervals. One pass over a run fills mergeable tables; every measure reads those."""
