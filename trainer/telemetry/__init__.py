"""Reports of steps, for people and machines: timing → step_report → scalars → sinks, trackers; gauges; profiling."""
