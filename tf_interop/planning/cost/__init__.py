"""What stages cost: measured, else modelled."""
