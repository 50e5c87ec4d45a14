"""What travels between the notebook and its ranks: values, their frames, what is printed."""
