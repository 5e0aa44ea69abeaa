"""Runs while they are written: followed, judged, and shown on a page or in a terminal."""
