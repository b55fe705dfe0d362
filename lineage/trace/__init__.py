"""A document's history in every direction: exposure (training steps) → document_history → tracer."""
