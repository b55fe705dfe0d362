"""Step timing and step reports: timing → step_report → sinks, gauges; profiling."""
