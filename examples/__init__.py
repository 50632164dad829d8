"""One script per claim, each short enough to read."""
