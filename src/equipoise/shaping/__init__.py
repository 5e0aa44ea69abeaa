"""Rewards, advantages and filters over groups of completions, and what keeps state between steps: numpy, (P, G) in and out."""
