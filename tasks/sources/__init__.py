"""Read rows from the generated world, the Hub, or files. ``tasks.base.Dataset`` describes a data set in all three."""
