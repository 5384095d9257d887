"""Consumer groups: who reads which partition, and how far a group has read."""
