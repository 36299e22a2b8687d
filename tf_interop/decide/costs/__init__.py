"""What a stage costs: measured, or modelled from what is known of an SM."""
