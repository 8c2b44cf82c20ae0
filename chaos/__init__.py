"""The fault simulator: real parties on a simulated network, disk and clock, with seeded faults."""
