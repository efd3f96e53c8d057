"""Which samples belong to which piece of which step, and how a worker gets only its own."""
