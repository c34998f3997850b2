"""Tools: typed callables that a model may call, and the toolbox that holds them."""
