"""What a person looks at: figures, the report in one file, the live page. Draws estimates and computes none."""
