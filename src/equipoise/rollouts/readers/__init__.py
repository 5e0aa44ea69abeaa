"""One file per foreign format. Each maps its source into the record's columns and changes nothing in the source."""
