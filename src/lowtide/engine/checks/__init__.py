"""What a step really computes and needs."""
