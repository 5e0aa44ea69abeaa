"""How often our 95 % intervals hold the truth, in simulated runs whose truth is known."""
