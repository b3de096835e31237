"""What processes that train one model tell each other."""
