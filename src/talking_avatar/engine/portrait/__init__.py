"""The portrait engine: animates the photo itself, on one CPU core."""
