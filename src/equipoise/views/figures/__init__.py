"""One file per figure of the report. Each exposes `FIGURE`."""
