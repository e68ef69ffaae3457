"""dialects: one module for the protocol of each kind of model server, and the parts that they share. No I/O."""
