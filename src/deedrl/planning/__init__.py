"""What training would cost: memory and time, from a model's shape and the settings alone. Loads no torch."""
