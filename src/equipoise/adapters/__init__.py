"""Equipoise inside other trainers: one host per file or `host_…` family. Each translates and does nothing else."""
