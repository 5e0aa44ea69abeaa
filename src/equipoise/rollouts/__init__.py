"""The record of rollouts: its columns, the run folder, streaming reads, and one reader per foreign format."""
