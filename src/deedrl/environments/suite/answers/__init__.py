"""A shop's customers write, and one answer in plain text is the whole episode: its tone, and what it refuses."""
