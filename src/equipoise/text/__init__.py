"""All that is read out of a string: answers and their one form, thinking, planning spans, degenerate patterns, formats."""
