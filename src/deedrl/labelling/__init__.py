"""A local web page on which people say which of two episodes is better. See docs/reward-model.md."""
