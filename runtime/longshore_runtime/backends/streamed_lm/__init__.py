"""A causal language model whose decoder layers lie in host memory and stream to the device as they are needed."""
