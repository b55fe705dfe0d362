"""`sluice plan`: layout → memory, communication, schedules, throughput, cadence → plan; search and roofline
build on these; gpus holds data sheets."""
