"""What the broker tells about itself: metrics and health."""
