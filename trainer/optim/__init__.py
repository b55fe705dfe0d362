"""What brings gradients into weights: optimizer → muon → owners; roles of parameters; the learning rate."""
