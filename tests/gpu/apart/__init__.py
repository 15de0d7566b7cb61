"""What PyTorch does, in processes of its own, on the Python that has it: nothing else is imported
there, so that neither autotune nor NumPy has to be."""
