"""output: the outputs of the jobs of a batch: kept, put in order, shown, and written to the two streams."""
