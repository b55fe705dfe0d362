"""`sluice plan`: layout → memory, communication, throughput, cadence → plan; gpus holds data sheets."""
