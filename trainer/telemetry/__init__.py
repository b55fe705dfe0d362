"""Reports of steps, for people and machines: timing → step_report → sinks, gauges; profiling."""
