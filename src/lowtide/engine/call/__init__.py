"""The planned call that stands where the model's own was."""
