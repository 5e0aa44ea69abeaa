"""The embedded trainer: supervised and reinforcement learning in one loop."""
