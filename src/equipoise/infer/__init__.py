"""Strategies that spend a token budget on one question, the ledger they cannot overspend, and allocation across questions."""
