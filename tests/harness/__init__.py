"""What tests share: real processes, waiting without sleeping, certificates. The only place that spawns."""
