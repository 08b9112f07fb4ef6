"""Engine "ray": the same records, made by workers of this machine or of a cluster."""
