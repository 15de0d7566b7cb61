"""What can be tuned: parameters, spaces, and the ready-made spaces as YAML. Pure: no vendor."""
