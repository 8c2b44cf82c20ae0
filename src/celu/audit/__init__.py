"""What a run leaked: messages are recorded in training, and attacked after it."""
