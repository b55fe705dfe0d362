"""What a step tells people and machines: timing → step_report → sinks, gauges; profiling."""
