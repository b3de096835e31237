"""What others published, to be compared with: figures, models and their device."""
