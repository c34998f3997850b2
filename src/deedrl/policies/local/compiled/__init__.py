"""What a decoder does between its matrix products, in C, compiled on first use for this processor and model."""
