"""Plain data: a row per method, named recipes, and the keys that each host has for our settings."""
