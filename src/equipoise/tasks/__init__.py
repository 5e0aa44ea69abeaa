"""Seeded problems, how they are posed, and their checkers."""
