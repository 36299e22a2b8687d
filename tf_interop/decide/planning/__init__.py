"""Making plans from measurements, checking them, and saying why they are as they are."""
