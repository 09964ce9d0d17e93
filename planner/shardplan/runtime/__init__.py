"""Plans at run time, without a framework: shards of every device, names of parameters, and predicted communication.
numpy is imported only when an array is touched."""
