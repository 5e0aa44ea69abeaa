"""Torch, and the one room with a vocabulary axis: what is read off a model's hidden states and output weight."""
