"""Per-example statistics behind the metrics: used by tasks, and by the ``evaluate`` modules of ``tasks.metrics``."""
