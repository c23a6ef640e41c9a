"""What the DiT is told: `photo` for the sink, `speech` and `controls` for every chunk."""
