"""The command line: one file per command that parses, calls one function and prints."""
