"""One file per backend that completions are drawn from."""
