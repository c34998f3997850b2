"""On call: an alert names a service; the agent finds the cause in a service graph and applies the right remedy."""
